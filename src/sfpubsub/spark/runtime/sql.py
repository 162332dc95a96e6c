"""Names and texts in Spark SQL, quoted so that Spark takes them literally.

The name of a field comes from an org, and that of a directory from the user. Every such name that
goes into SQL, or into a method of a DataFrame that parses it, is quoted here and nowhere else.
This module does not need Spark.
"""

from __future__ import annotations

from collections.abc import Mapping

# How a session must read SQL for the functions below to be right: backslashes escape characters in
# a text, and a quoted name is not a regular expression. These are Spark's defaults.
READING = {
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.parser.quotedRegexColumnNames": "false",
}


def quoted(*path: str) -> str:
    """Return the name of a column, a table or a schema in SQL.

    Args:
        path: The name, or the names that lead to it: a column and a field of its struct, a schema
            and a table. A dot in a name does not separate names.
    """
    return ".".join("`" + name.replace("`", "``") + "`" for name in path)


def sql_text(text: str) -> str:
    """Return *text* as an SQL string literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def pairs_in_sql(properties: Mapping[str, str]) -> str:
    """Return the names and values of a table's properties for ``TBLPROPERTIES (…)``."""
    return ", ".join(f"{sql_text(key)} = {sql_text(value)}" for key, value in properties.items())
