"""Published files of others, in and out: encoders, quantizer and decoder."""
