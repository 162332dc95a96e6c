"""Mirror: keep complete tables of Salesforce objects in sync with the org.

`job` implements the mirror. `stream` ingests its events. `mirror` opens both, and is what programs
use. How events and reads of a record are merged is in records/.
"""
