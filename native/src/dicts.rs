//! Payloads as Python values.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString};

use crate::input::{Input, UnexpectedPayload};
use crate::schema::{Record, Type};

/// Of no memory, mostly: the careful reading meets it again.
impl From<PyErr> for UnexpectedPayload {
    fn from(_: PyErr) -> Self {
        UnexpectedPayload
    }
}

pub fn value<'py>(
    py: Python<'py>,
    kind: &Type,
    input: &mut Input<'_>,
) -> Result<Bound<'py, PyAny>, UnexpectedPayload> {
    Ok(match kind {
        Type::Null => py.None().into_bound(py),
        Type::Boolean => PyBool::new(py, input.boolean()?).to_owned().into_any(),
        Type::Int => PyInt::new(py, input.int()?).into_any(),
        Type::Long => PyInt::new(py, input.long()?).into_any(),
        Type::Float => PyFloat::new(py, finite(input.float()?.into())?).into_any(),
        Type::Double => PyFloat::new(py, finite(input.double()?)?).into_any(),
        Type::Bytes => PyBytes::new(py, input.span()?).into_any(),
        Type::String => PyString::from_bytes(py, input.span()?)?.into_any(),
        Type::Fixed(size) => PyBytes::new(py, input.take(*size)?).into_any(),
        Type::Enum(symbols) => input.choice(symbols)?.object.bind(py).clone().into_any(),
        Type::Array(items) => {
            let list = PyList::empty(py);
            for_each(input, |input| Ok(list.append(value(py, items, input)?)?))?;
            list.into_any()
        }
        Type::Map(values) => {
            let dict = PyDict::new(py);
            for_each(input, |input| {
                let key = PyString::from_bytes(py, input.span()?)?;
                Ok(dict.set_item(key, value(py, values, input)?)?)
            })?;
            dict.into_any()
        }
        Type::Nullable(inside) => match input.long()? {
            0 => py.None().into_bound(py),
            1 => value(py, inside, input)?,
            _ => return Err(UnexpectedPayload),
        },
        Type::Union(branches) => {
            let branch = input.choice(branches)?;
            value(py, branch, input)?
        }
        Type::Record(fields) => record(py, fields, input)?.into_any(),
        Type::Skipped(_) => return Err(UnexpectedPayload), // fields only
    })
}

fn record<'py>(
    py: Python<'py>,
    record: &Record,
    input: &mut Input<'_>,
) -> Result<Bound<'py, PyDict>, UnexpectedPayload> {
    let dict = record.template.bind(py).copy()?;
    for field in &record.fields {
        if let Type::Nullable(_) = field.kind
            && input.skip_zero()
        {
            continue;
        }
        if let Type::Skipped(kind) = &field.kind {
            skip(kind, input)?;
            continue;
        }
        dict.set_item(field.name.bind(py), value(py, &field.kind, input)?)?;
    }
    Ok(dict)
}

/// Steps over a value. It has to fit, but for the letters of its texts.
pub fn skip(kind: &Type, input: &mut Input<'_>) -> Result<(), UnexpectedPayload> {
    match kind {
        Type::Null => {}
        Type::Boolean => drop(input.boolean()?),
        Type::Int => drop(input.int()?),
        Type::Long => drop(input.long()?),
        Type::Float => drop(input.take(4)?),
        Type::Double => drop(input.take(8)?),
        Type::Bytes | Type::String => drop(input.span()?),
        Type::Fixed(size) => drop(input.take(*size)?),
        Type::Enum(symbols) => drop(input.choice(symbols)?),
        Type::Array(items) => for_each(input, |input| skip(items, input))?,
        Type::Map(values) => for_each(input, |input| {
            input.span()?;
            skip(values, input)
        })?,
        Type::Nullable(inside) => match input.long()? {
            0 => {}
            1 => skip(inside, input)?,
            _ => return Err(UnexpectedPayload),
        },
        Type::Union(branches) => skip(input.choice(branches)?, input)?,
        Type::Record(record) => {
            for field in &record.fields {
                skip(&field.kind, input)?;
            }
        }
        Type::Skipped(inside) => skip(inside, input)?,
    }
    Ok(())
}

/// Takes the items of an array or a map, block by block.
pub fn for_each<'a>(
    input: &mut Input<'a>,
    mut take: impl FnMut(&mut Input<'a>) -> Result<(), UnexpectedPayload>,
) -> Result<(), UnexpectedPayload> {
    loop {
        let count = input.block()?;
        if count == 0 {
            return Ok(());
        }
        for _ in 0..count {
            take(input)?;
        }
    }
}

/// JSON has no word for the others, so that whoever makes JSON of a value need not look for them.
pub fn finite(number: f64) -> Result<f64, UnexpectedPayload> {
    if number.is_finite() {
        Ok(number)
    } else {
        Err(UnexpectedPayload)
    }
}
