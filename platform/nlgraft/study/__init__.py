"""The question: what is compared, tuned and repeated, as typed data; no ray, mlflow or torch."""
