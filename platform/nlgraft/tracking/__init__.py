"""Tracking of a study in MLflow; the only package that imports mlflow."""
