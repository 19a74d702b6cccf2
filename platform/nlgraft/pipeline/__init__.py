"""The work: stages, fingerprints, the artifact store, and the run of one trial's stage graph."""
