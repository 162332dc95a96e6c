"""The describe resources of the REST API: the objects of the org and their fields."""

from __future__ import annotations

import contextlib
from typing import Any

from sfpubsub.emulator.http import streaming
from sfpubsub.emulator.http.exchange import Answer, Call, json_answer
from sfpubsub.emulator.http.rest import authorised, missing
from sfpubsub.emulator.http.sobjects import user_of
from sfpubsub.emulator.org.records.fields import Field, SObject
from sfpubsub.emulator.org.records.problems import RecordProblem

_SOAP = {
    "boolean": "xsd:boolean",
    "int": "xsd:int",
    "double": "xsd:double",
    "currency": "xsd:double",
    "percent": "xsd:double",
    "date": "xsd:date",
    "datetime": "xsd:dateTime",
    "time": "xsd:time",
    "reference": "tns:ID",
    "id": "tns:ID",
    "address": "urn:address",
}
_TEXTS = ("string", "picklist", "multipicklist", "email", "phone", "url", "textarea", "name")


def everything(call: Call) -> Answer:
    """GET …/sobjects: return the basic properties of all objects."""
    version, user = authorised(call), user_of(call)
    records, rows = call.world.records, []
    for name in records.objects():
        with contextlib.suppress(RecordProblem):  # hidden from the user
            rows.append(_brief(records.seen(name, user), version))
    return json_answer({"encoding": "UTF-8", "maxBatchSize": 200, "sobjects": rows})


def basics(call: Call) -> Answer:
    """GET …/sobjects/<object>: return the basic properties of an object."""
    version = authorised(call)
    return json_answer({"objectDescribe": _brief(_found(call), version), "recentItems": []})


def whole(call: Call) -> Answer:
    """GET …/sobjects/<object>/describe: return all properties of an object and its fields."""
    version = authorised(call)
    of = _found(call)
    more = {
        "fields": [_field(of, field) for field in of.fields],
        "childRelationships": [],
        "recordTypeInfos": [],
        "supportedScopes": [{"label": "All", "name": "everything"}],
        "compactLayoutable": False,
        "searchLayoutable": False,
    }
    return json_answer({**_brief(of, version), **more})


def _found(call: Call) -> SObject:
    if call.parts["object"] in streaming.OBJECTS:
        return streaming.OBJECTS[call.parts["object"]]
    try:
        return call.world.records.seen(call.parts["object"], user_of(call))
    except RecordProblem as problem:
        raise missing() from problem


def _brief(of: SObject, version: int) -> dict[str, Any]:
    url = f"/services/data/v{version}.0/sobjects/{of.name}"
    able = ("createable", "deletable", "queryable", "replicateable", "retrieveable")
    return {
        "name": of.name,
        "label": of.label,
        "labelPlural": of.plural,
        "keyPrefix": of.key_prefix,
        "custom": of.is_custom,
        "customSetting": False,
        **dict.fromkeys((*able, "undeletable", "updateable"), True),
        "searchable": False,
        "triggerable": True,
        "layoutable": True,
        "mergeable": False,
        "activateable": False,
        "deprecatedAndHidden": False,
        "feedEnabled": False,
        "hasSubtypes": False,
        "isSubtype": False,
        "mruEnabled": True,
        "urls": {
            "sobject": url,
            "describe": f"{url}/describe",
            "rowTemplate": f"{url}/{{ID}}",
        },
    }


def _field(of: SObject, field: Field) -> dict[str, Any]:
    plain = field.is_plain
    kind = {"name": "string"}.get(field.type, field.type)
    return {
        "name": field.name,
        "label": field.label,
        "type": kind,
        "soapType": _SOAP.get(field.type, "xsd:string"),
        "length": field.length,
        "byteLength": field.length * 3,
        "digits": 10 if field.type == "int" else 0,
        "precision": 18 if field.is_number and field.type != "int" else 0,
        "scale": field.scale,
        "nillable": field.nillable,
        "createable": field.createable,
        "updateable": field.updateable,
        "defaultedOnCreate": field.default is not None or field.name == "OwnerId",
        "defaultValue": field.default,
        "calculated": field.calculated,
        "calculatedFormula": field.formula or None,
        "compoundFieldName": field.compound or None,
        "custom": field.is_custom,
        "externalId": field.external_id,
        "idLookup": field.external_id or field.type == "id",
        "unique": field.unique,
        "caseSensitive": False,
        "nameField": field.name == "Name",
        "namePointing": len(field.reference_to) > 1,
        "polymorphicForeignKey": len(field.reference_to) > 1,
        "referenceTo": list(field.reference_to),
        "relationshipName": field.relationship or None,
        "relationshipOrder": None,
        "cascadeDelete": False,
        "restrictedDelete": False,
        "restrictedPicklist": field.restricted,
        "dependentPicklist": False,
        "controllerName": None,
        "picklistValues": [
            {"value": value, "label": value, "active": True, "defaultValue": value == field.default}
            for value in field.picklist_values
        ],
        "filterable": plain,
        "sortable": plain,
        "groupable": plain and field.type in (*_TEXTS, "reference", "id", "date", "boolean"),
        "aggregatable": plain,
        "permissionable": field.nillable and not field.calculated,
        "autoNumber": False,
        "htmlFormatted": False,
        "encrypted": False,
        "deprecatedAndHidden": False,
        "displayLocationInDecimal": False,
        "highScaleNumber": False,
        "inlineHelpText": None,
        "extraTypeInfo": "plaintextarea" if field.type == "textarea" else None,
        "writeRequiresMasterRead": False,
    }
