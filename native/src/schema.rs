//! Schemas as they are read: names resolved, and everything that is the same for every payload made
//! beforehand.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

use crate::json;

/// Types in a schema, named ones counted wherever they are referred to. An object of Salesforce has
/// some 900 fields; a small hostile schema could otherwise grow without end.
const MAX_TYPES: usize = 4_000;

/// Bytes of a `fixed`. In Arrow a null one takes as many.
const MAX_FIXED: usize = 256;

/// Types inside one another. Fewer than the careful reading takes, so that it never refuses a
/// payload that is read here. A recursive schema goes beyond.
const MAX_DEPTH: usize = 24;

/// A type whose every value takes a byte at least, so that what is made of a payload is bounded by
/// its size. `Null` is only ever a union's branch.
pub enum Type {
    Null,
    Boolean,
    Int,
    Long,
    Float,
    Double,
    Bytes,
    String,
    Fixed(usize),
    Enum(Vec<Symbol>),
    Array(Box<Type>),
    Map(Box<Type>),
    /// A union of null and another type, in this order: nearly every field of Salesforce.
    Nullable(Box<Type>),
    /// A union of two types or more beside null.
    Union(Vec<Type>),
    Record(Record),
    /// Of a field that is stepped over.
    Skipped(Box<Type>),
}

pub struct Symbol {
    pub object: Py<PyString>,
    pub text: String,
    /// With its quotes.
    pub json: String,
}

pub struct Record {
    pub fields: Vec<Field>,
    /// All names with None. To start from a copy makes a null free to store, and keeps the order.
    pub template: Py<PyDict>,
}

pub struct Field {
    pub name: Py<PyString>,
    /// What stands before the value: a comma or a brace, the name, a colon.
    pub json: String,
    /// The same with a null.
    pub json_null: String,
    pub kind: Type,
}

impl Type {
    /// Takes what `sfpubsub.avro.compiled` makes of a schema: a name, or a tuple that begins with one.
    pub fn of(plan: &Bound<'_, PyAny>) -> PyResult<Type> {
        Reader { left: MAX_TYPES }.kind(plan, 0)
    }
}

struct Reader {
    left: usize,
}

impl Reader {
    fn kind(&mut self, plan: &Bound<'_, PyAny>, depth: usize) -> PyResult<Type> {
        if depth > MAX_DEPTH || self.left == 0 {
            return Err(unsupported("too many types"));
        }
        self.left -= 1;
        if let Ok(name) = plan.cast::<PyString>() {
            return scalar(name.to_str()?);
        }
        let parts = plan.cast::<PyTuple>()?;
        let name: String = parts.get_item(0)?.extract()?;
        let inside = parts.get_item(1)?;
        Ok(match name.as_str() {
            "array" => Type::Array(Box::new(self.kind(&inside, depth + 1)?)),
            "skip" => Type::Skipped(Box::new(self.kind(&inside, depth)?)),
            "map" => Type::Map(Box::new(self.kind(&inside, depth + 1)?)),
            "fixed" => match inside.extract()? {
                size @ 1..=MAX_FIXED => Type::Fixed(size),
                _ => return Err(unsupported("a fixed of no bytes, or of many")),
            },
            "enum" => Type::Enum(
                inside
                    .try_iter()?
                    .map(|s| symbol(&s?))
                    .collect::<PyResult<_>>()?,
            ),
            "union" => self.union(inside.cast()?, depth)?,
            "record" => Type::Record(self.record(inside.cast()?, depth)?),
            _ => return Err(unsupported(&name)),
        })
    }

    fn union(&mut self, branches: &Bound<'_, PyTuple>, depth: usize) -> PyResult<Type> {
        let mut found = Vec::with_capacity(branches.len());
        for branch in branches {
            let is_null = branch.cast::<PyString>().is_ok_and(|name| name == "null");
            found.push(if is_null {
                Type::Null
            } else {
                self.kind(&branch, depth + 1)?
            });
        }
        if let [Type::Null, _] = found[..] {
            return Ok(Type::Nullable(Box::new(found.remove(1))));
        }
        if found
            .iter()
            .filter(|branch| !matches!(branch, Type::Null))
            .count()
            < 2
        {
            return Err(unsupported("a union of one type"));
        }
        Ok(Type::Union(found))
    }

    fn record(&mut self, fields: &Bound<'_, PyTuple>, depth: usize) -> PyResult<Record> {
        let template = PyDict::new(fields.py());
        let mut found = Vec::with_capacity(fields.len());
        for field in fields {
            let (name, plan): (Bound<'_, PyString>, Bound<'_, PyAny>) = field.extract()?;
            let kind = self.kind(&plan, depth + 1)?;
            let mut json = String::from(if template.is_empty() { "{" } else { "," });
            if !matches!(kind, Type::Skipped(_)) {
                if template.contains(&name)? {
                    return Err(unsupported("two fields of one name")); // the last one has to win
                }
                template.set_item(&name, fields.py().None())?;
            }
            json::text(&mut json, name.to_str()?);
            json.push(':');
            found.push(Field {
                name: name.unbind(),
                json_null: format!("{json}null"),
                json,
                kind,
            });
        }
        if template.is_empty() {
            return Err(unsupported("a record without a field"));
        }
        Ok(Record {
            fields: found,
            template: template.unbind(),
        })
    }
}

fn scalar(name: &str) -> PyResult<Type> {
    Ok(match name {
        "boolean" => Type::Boolean,
        "int" => Type::Int,
        "long" => Type::Long,
        "float" => Type::Float,
        "double" => Type::Double,
        "bytes" => Type::Bytes,
        "string" => Type::String,
        "null" => return Err(unsupported("a value without a byte")),
        _ => return Err(unsupported(name)),
    })
}

fn symbol(object: &Bound<'_, PyAny>) -> PyResult<Symbol> {
    let object = object.cast::<PyString>()?;
    let text = object.to_str()?.to_owned();
    let mut json = String::new();
    json::text(&mut json, &text);
    Ok(Symbol {
        object: object.clone().unbind(),
        text,
        json,
    })
}

fn unsupported(what: &str) -> PyErr {
    PyValueError::new_err(format!("left to the careful reading: {what}"))
}
