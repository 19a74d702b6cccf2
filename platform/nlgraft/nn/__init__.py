"""One encoder-decoder of which every family is a configuration; contextual encoders; decoding."""
