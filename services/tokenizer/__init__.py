"""The DPU's room: text to tokens and back, and the front end of every ring (B11-B15)."""
