"""The question: what is compared, tuned and repeated, as typed data, without ray, mlflow or torch."""
