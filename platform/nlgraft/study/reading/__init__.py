"""From a study file to a study, with every problem and its place."""
