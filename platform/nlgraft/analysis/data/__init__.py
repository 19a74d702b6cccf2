"""Results as read from the store."""
