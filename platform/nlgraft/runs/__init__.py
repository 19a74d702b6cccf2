"""One run of a study and what is done with it afterwards: proposals, verification, archives, housekeeping."""
