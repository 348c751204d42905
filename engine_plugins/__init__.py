"""Engines that other installed packages bring: recognizers, voices and chat models.

A package offers one by an entry point (`halfsec.recognizers`, `halfsec.voices`, `halfsec.chats`);
the settings name it as "NAME:ARGUMENT". README.md has the map, docs/how-to/engines.md the guide.
"""
