"""What is remembered of a study, in MLflow. The only package that imports mlflow."""

from nlgraft.tracking.mlflow_tracker import MlflowTracker

__all__ = ["MlflowTracker"]
