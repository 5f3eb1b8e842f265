"""Fetch URLs of many hosts: politely, safely, and with the consent of those who offer them."""
