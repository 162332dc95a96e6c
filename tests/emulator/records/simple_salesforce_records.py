"""Run simple-salesforce, unchanged: SOAP sign-in, records, paged queries, Bulk API 2.0.

    python simple_salesforce_records.py URL CA_FILE

Runs in a separate environment; see test_foreign_records.py. Prints the results as one line of JSON.
"""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from typing import Any

os.environ["REQUESTS_CA_BUNDLE"] = sys.argv[2]

from simple_salesforce import Salesforce, SalesforceLogin
from simple_salesforce.exceptions import (
    SalesforceMalformedRequest,
    SalesforceResourceNotFound,
)

USER = {"username": "user@example.com", "password": "emulator-password", "security_token": ""}
KIND = "Order__c"


def records(client: Salesforce) -> dict[str, Any]:
    """Create, read, update, upsert and delete records; return what the client reported."""
    seen: dict[str, Any] = {}
    orders = client.Order__c
    made = orders.create({"Name": "one", "Quantity__c": 2, "Price__c": 1.5})
    seen["created"] = made["success"]
    seen["updated"] = orders.update(made["id"], {"Quantity__c": 4})
    seen["total"] = orders.get(made["id"])["Total__c"]
    seen["upserted"] = [orders.upsert("External_Id__c/x", {"Name": name}) for name in ("2", "3")]
    seen["by_external_id"] = orders.get_by_custom_id("External_Id__c", "x")["Name"]
    try:
        orders.create({})
    except SalesforceMalformedRequest as error:
        seen["refused"] = error.content[0]["errorCode"]
    seen["deleted"] = orders.delete(made["id"])
    try:
        orders.get(made["id"])
    except SalesforceResourceNotFound as error:
        seen["afterwards"] = error.content[0]["errorCode"]
    seen["fields"] = len(orders.describe()["fields"]) > 10
    seen["objects"] = len(client.describe()["sobjects"])
    return seen


def bulk(client: Salesforce) -> dict[str, Any]:
    """Insert, query and delete records with Bulk API 2.0; return what the client reported."""
    given = [{"Name": f"bulk {n}", "Quantity__c": str(n)} for n in range(2500)]
    (job,) = client.bulk2.Order__c.insert(records=given)
    seen = {"loaded": job["numberRecordsProcessed"], "failed": job["numberRecordsFailed"]}
    soql = f"SELECT Id, Name FROM {KIND} WHERE Name LIKE 'bulk%'"
    pages = list(client.bulk2.Order__c.query(soql, max_records=1000))
    rows = [row for page in pages for row in csv.DictReader(io.StringIO(page))]
    seen["sets"], seen["read"] = len(pages), len(rows)
    seen["queried"] = client.query_all(soql)["totalSize"]
    seen["iterated"] = sum(1 for _ in client.query_all_iter(soql))
    seen["sandbox"] = client.is_sandbox()
    counted = client.query(f"SELECT COUNT(Id) n, MAX(Name) m FROM {KIND} WHERE Name LIKE 'bulk%'")
    seen["counted"] = [counted["records"][0][name] for name in ("n", "m")]
    owned = client.query(f"SELECT Owner.Username FROM {KIND} WHERE CreatedDate = TODAY LIMIT 1")
    seen["owner"] = owned["records"][0]["Owner"]["Username"]
    kind = {"attributes": {"type": "Order_Event__e"}, "Order_Number__c": "composite"}
    body = {"records": [kind, kind]}
    done = client.restful("composite/sobjects", method="POST", json=body)
    seen["composite"] = [one["errors"][0]["statusCode"] for one in done]
    (job,) = client.bulk2.Order__c.delete(records=[{"Id": row["Id"]} for row in rows])
    seen["removed"] = job["numberRecordsProcessed"] - job["numberRecordsFailed"]
    return seen


session, instance = SalesforceLogin(**USER, scratch_url=sys.argv[1], sf_version="59.0")
client = Salesforce(session_id=session, instance=instance, version="59.0")
print(json.dumps({**records(client), **bulk(client)}))
