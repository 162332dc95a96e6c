//! Names for the bits of a change event's bitmaps.

use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

/// Hexadecimal digits that are taken; the Python code takes more. 2,048 fields.
const MAX_DIGITS: usize = 512;

/// The fields of one change event's schema. Immutable; may be shared between threads.
#[pyclass(frozen)]
pub struct FieldNames {
    fields: Vec<Py<PyString>>,
    /// Of each field, if it is compound.
    parts: Vec<Option<Vec<Py<PyString>>>>,
}

#[pymethods]
impl FieldNames {
    #[new]
    fn new(fields: Vec<Py<PyString>>, parts: Vec<Option<Vec<Py<PyString>>>>) -> Self {
        FieldNames { fields, parts }
    }

    /// Return the names that an entry such as `0x0A` or `6-0x03` stands for; None where the Python
    /// code has to say what is wrong with it.
    fn expand<'py>(
        &self,
        py: Python<'py>,
        entry: &Bound<'py, PyString>,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let Some((parent, digits)) = entry.to_str().ok().and_then(|text| text.split_once("0x"))
        else {
            return Ok(None);
        };
        let names = match parent.strip_suffix('-') {
            None if parent.is_empty() => Some(&self.fields),
            None => None,
            Some(number) => place(number).and_then(|place| self.parts.get(place)?.as_ref()),
        };
        let Some(names) = names else { return Ok(None) };
        if digits.is_empty() || digits.len() > MAX_DIGITS {
            return Ok(None);
        }
        let mut found = vec![];
        for (place, digit) in digits.bytes().rev().enumerate() {
            let Some(bits) = char::from(digit).to_digit(16) else {
                return Ok(None);
            };
            for bit in (0..4).filter(|bit| bits & 1 << bit != 0) {
                match names.get(place * 4 + bit) {
                    Some(name) => found.push(name.bind(py)),
                    None => return Ok(None),
                }
            }
        }
        PyTuple::new(py, found).map(Some)
    }
}

/// A number without a sign, which `parse` would take.
fn place(number: &str) -> Option<usize> {
    if number.len() > 4 || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    number.parse().ok()
}
