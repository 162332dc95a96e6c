//! The compiled decoder of `sfpubsub`: payloads of one schema as dicts, as JSON text, and as Arrow.
//!
//! What is returned equals what the Python code returns. Whatever is rare or does not fit is a
//! `ValueError`, or its number is in a list: the caller then reads the payload with the Python code, which
//! decides. Nothing here is unsafe, and time and memory are bounded by the size of the payload.

#![forbid(unsafe_code)]

mod bitmaps;
mod columns;
mod dicts;
mod input;
mod json;
mod message;
mod response;
mod schema;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyString};

use columns::Column;
use input::{Input, UnexpectedPayload};
use message::Message;
use schema::Type;

/// Payload bytes from which on the GIL is released, some 0.3 ms of work. To take it again may mean
/// to wait for another thread's turn of 5 ms.
const LARGE: usize = 128 * 1024;

impl From<UnexpectedPayload> for PyErr {
    fn from(_: UnexpectedPayload) -> Self {
        PyValueError::new_err("left to the careful reading")
    }
}

/// Decodes the payloads of one schema. Immutable; may be shared between threads.
#[pyclass(frozen)]
struct Decoder {
    kind: Type,
}

#[pymethods]
impl Decoder {
    #[new]
    fn new(plan: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Decoder {
            kind: Type::of(plan)?,
        })
    }

    /// Return the value of a payload.
    fn decode<'py>(&self, py: Python<'py>, payload: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        let mut input = Input::new(payload);
        let found = dicts::value(py, &self.kind, &mut input)?;
        input.end()?;
        Ok(found)
    }

    /// Return a payload as JSON text.
    fn to_json<'py>(&self, py: Python<'py>, payload: &[u8]) -> PyResult<Bound<'py, PyString>> {
        let mut out = String::with_capacity(payload.len() * 4);
        self.add_json(&mut out, payload)?;
        Ok(PyString::new(py, &out))
    }

    /// Return a line in UTF-8: `head`, a payload as JSON text, a closing brace, and a newline.
    fn to_line<'py>(
        &self,
        py: Python<'py>,
        head: &str,
        payload: &[u8],
    ) -> PyResult<Bound<'py, PyBytes>> {
        let mut out = String::with_capacity(head.len() + payload.len() * 4);
        out.push_str(head);
        self.add_json(&mut out, payload)?;
        out.push_str("}\n");
        Ok(PyBytes::new(py, out.as_bytes()))
    }

    /// Return a payload as JSON text, and the value of one of its fields, by number.
    fn to_json_with<'py>(
        &self,
        py: Python<'py>,
        payload: &[u8],
        field: usize,
    ) -> PyResult<(Bound<'py, PyString>, Bound<'py, PyAny>)> {
        let mut out = String::with_capacity(payload.len() * 4);
        let (mut at, kind) = self.add_json_with(&mut out, payload, field)?;
        let value = dicts::value(py, kind, &mut at)?;
        Ok((PyString::new(py, &out), value))
    }

    /// Return payloads as an Arrow message of one column, and the numbers of those that are left to
    /// the careful reading: they are not in it.
    fn to_arrow<'py>(
        &self,
        py: Python<'py>,
        payloads: Vec<PyBackedBytes>,
    ) -> PyResult<(Bound<'py, PyBytes>, Vec<usize>)> {
        batch(py, &payloads, |payloads| {
            let mut column = Column::new(&self.kind, payloads.len());
            let (rows, odd) = rows(payloads, |payload, row| {
                let mut input = Input::new(payload);
                let read = column
                    .read(&self.kind, &mut input, row)
                    .and_then(|()| input.end());
                read.inspect_err(|UnexpectedPayload| column.fit(row))
            });
            column.fit(rows);
            (rows, vec![column], odd)
        })
    }

    /// The same with two columns: the payloads as JSON texts, and the values of a field, by number.
    fn to_arrow_json<'py>(
        &self,
        py: Python<'py>,
        payloads: Vec<PyBackedBytes>,
        field: usize,
    ) -> PyResult<(Bound<'py, PyBytes>, Vec<usize>)> {
        let kind = self.field(field)?;
        batch(py, &payloads, |payloads| {
            let mut texts = Column::of_texts(payloads.len());
            let mut values = Column::new(kind, payloads.len());
            let (rows, odd) = rows(payloads, |payload, row| {
                let read = texts.read_text(row, |out| {
                    let (mut at, _) = self.add_json_with(out, payload, field)?;
                    values.read(kind, &mut at, row)
                });
                read.inspect_err(|UnexpectedPayload| {
                    texts.fit(row);
                    values.fit(row);
                })
            });
            texts.fit(rows);
            values.fit(rows);
            (rows, vec![texts, values], odd)
        })
    }
}

impl Decoder {
    fn add_json(&self, out: &mut String, payload: &[u8]) -> Result<(), UnexpectedPayload> {
        let mut input = Input::new(payload);
        json::value(out, &self.kind, &mut input)?;
        input.end()
    }

    /// Also returns where a field's value begins, and its type.
    fn add_json_with<'a>(
        &self,
        out: &mut String,
        payload: &'a [u8],
        field: usize,
    ) -> Result<(Input<'a>, &Type), UnexpectedPayload> {
        let Type::Record(record) = &self.kind else {
            return Err(UnexpectedPayload);
        };
        let mut input = Input::new(payload);
        let mut found = None;
        json::record(out, record, &mut input, |number, input| {
            if number == field {
                found = Some(input.clone());
            }
        })?;
        input.end()?;
        Ok((found.ok_or(UnexpectedPayload)?, self.field(field)?))
    }

    fn field(&self, number: usize) -> Result<&Type, UnexpectedPayload> {
        let Type::Record(record) = &self.kind else {
            return Err(UnexpectedPayload);
        };
        record
            .fields
            .get(number)
            .map(|field| &field.kind)
            .ok_or(UnexpectedPayload)
    }
}

/// Reads payloads into rows; returns how many, and the numbers of those that are odd.
fn rows(
    payloads: &[PyBackedBytes],
    mut read: impl FnMut(&[u8], usize) -> Result<(), UnexpectedPayload>,
) -> (usize, Vec<usize>) {
    let (mut rows, mut odd) = (0, vec![]);
    for (number, payload) in payloads.iter().enumerate() {
        match read(payload, rows) {
            Ok(()) => rows += 1,
            Err(UnexpectedPayload) => odd.push(number),
        }
    }
    (rows, odd)
}

/// Makes columns of payloads, without the GIL if they are many, and returns them as a message.
fn batch<'py>(
    py: Python<'py>,
    payloads: &[PyBackedBytes],
    make: impl FnOnce(&[PyBackedBytes]) -> (usize, Vec<Column>, Vec<usize>) + Send,
) -> PyResult<(Bound<'py, PyBytes>, Vec<usize>)> {
    let size: usize = payloads.iter().map(|payload| payload.len()).sum();
    let (rows, columns, odd) = if size < LARGE {
        make(payloads)
    } else {
        py.detach(|| make(payloads))
    };
    let mut message = Message::default();
    columns
        .iter()
        .for_each(|column| column.write(&mut message, rows));
    Ok((message.to_bytes(py, rows)?, odd))
}

#[pymodule]
fn sfpubsub_native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<bitmaps::FieldNames>()?;
    module.add_class::<response::Responses>()?;
    module.add_class::<Decoder>()
}
