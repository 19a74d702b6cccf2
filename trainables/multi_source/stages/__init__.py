"""The stages that only this system has."""
