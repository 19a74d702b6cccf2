"""Settings and inputs of each kind of stage. No torch here."""
