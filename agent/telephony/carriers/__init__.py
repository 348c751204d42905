"""Telephone carriers and switchboards: media stream protocol and webhook, one module for each.

A media stream protocol turns a carrier's frames into `media_stream.PhoneEvent`s, and audio, marks
and commands into the carrier's frames. A webhook reads a carrier's request about a call, checks its
signature, and writes the answer. All are pure: no I/O, no clock, no knowledge of turns or models.
Each module ends in a `Carrier`, its row of `table.CARRIERS`.
"""
