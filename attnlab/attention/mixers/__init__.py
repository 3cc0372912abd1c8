"""Mixers in the place of attention whose memory of the past has a fixed size: one file each."""
