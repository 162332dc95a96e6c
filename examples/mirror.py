"""Mirror an object, then read its table without Spark.

    python examples/mirror.py Account ./lake

The first run reads all records; each later run applies the changes since then, and ends.
"""

from __future__ import annotations

import sys

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from sfpubsub.spark import Mirror, MirrorSettings


def main() -> None:
    """Update the table from the org, and print the live records that are known to be correct."""
    name, target = sys.argv[1:]
    with Mirror([name], to=target, settings=MirrorSettings(margin=1.0)) as mirror:
        mirror.run(once=True)
    sql = (
        'SELECT record_id, "Name" FROM t '
        'WHERE NOT _is_deleted AND _complete AND NOT _reread ORDER BY "Name"'
    )
    rows = QueryBuilder().register("t", DeltaTable(f"{target}/{name}")).execute(sql)
    for row in pa.table(rows.read_all()).to_pylist():
        print(row["record_id"], row["Name"])


if __name__ == "__main__":
    main()
