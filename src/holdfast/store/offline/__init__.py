"""What is done to a stopped store: check, repair, export, import, compact, hand over."""
