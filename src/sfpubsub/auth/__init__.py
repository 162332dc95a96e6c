"""Authentication: sessions, and the ways to obtain one.

`session` defines the session and its providers. `oauth` implements the OAuth flows, and selects one
according to the settings. `sf_cli` and `simple_salesforce` use the logins of other tools. `http`
makes all requests, and `rest` calls the org's REST API.
"""
