"""The records of the org: objects, their fields, rows, queries, and the events of their changes.

    fields      what an object is: fields with their types, compound ones, system ones
    values      a field's value, as clients write it, as the table keeps it, as answers show it
    formulas    what a formula field computes
    problems    why a change or a query is refused, with Salesforce's error codes
    schemas     the Avro schema of an object's change events
    bitmaps     which fields changed, in the header of a change event
    changes     the change events of one transaction
    table       the rows of objects in SQLite
    queries     SOQL on these rows
    model       `Records`: what all wires use

Nothing here knows a wire.
"""
