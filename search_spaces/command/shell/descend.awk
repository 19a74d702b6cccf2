# Descend from x = 4 with a noisy gradient; write the loss after each step as a line of JSON.
BEGIN {
  srand(seed)
  x = 4
  for (step = 1; step <= 20; step++) {
    x -= rate * (2 * x + rand() - 0.5)
    printf "{\"step\": %d, \"dev/loss\": %.6f, \"x\": %.6f}\n", step, x * x, x
    fflush()
  }
}
