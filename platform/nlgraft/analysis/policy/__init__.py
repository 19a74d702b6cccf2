"""What may be concluded: pure functions of estimates and of what was asked before."""
