"""Transfer plans: the origin of every new row."""
