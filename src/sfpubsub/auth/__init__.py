"""Authentication: sessions, and the ways to obtain one.

`session` defines the session and its providers. `oauth` implements the OAuth flows and picks one
from the settings. `sf_cli` and `simple_salesforce` reuse logins that other tools keep. `http` makes
every request, and `rest` calls the org's REST API.
"""
