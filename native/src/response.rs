//! Messages of a stream (FetchResponse, ManagedFetchResponse in pubsub_api.proto) as Python values.
//!
//! Only what the service usually sends is read: each field once at most, and no other fields. Anything
//! else is `UnexpectedPayload`, and left to Protobuf.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyTuple};

use crate::input::UnexpectedPayload;

/// The fields of messages, as tags: the field's number and its wire type.
mod tag {
    const fn bytes(number: u64) -> u64 {
        number << 3 | 2
    }
    pub const EVENTS: u64 = bytes(1);
    pub const LATEST: u64 = bytes(2);
    pub const RPC_ID: u64 = bytes(3);
    pub const PENDING: u64 = 4 << 3;
    pub const EVENT: u64 = bytes(1);
    pub const REPLAY_ID: u64 = bytes(2);
    pub const ID: u64 = bytes(1);
    pub const SCHEMA_ID: u64 = bytes(2);
    pub const PAYLOAD: u64 = bytes(3);
}

/// Bytes that a tag or a length may have, and a value that is not negative.
const SHORT: usize = 5;
const LONG: usize = 9;

struct Message<'a> {
    rest: &'a [u8],
}

impl<'a> Message<'a> {
    /// The next field's tag; None at the end.
    fn tag(&mut self) -> Result<Option<u64>, UnexpectedPayload> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        self.number(SHORT).map(Some)
    }

    fn number(&mut self, most: usize) -> Result<u64, UnexpectedPayload> {
        let mut found = 0;
        for (place, byte) in self.rest.iter().take(most).enumerate() {
            found |= u64::from(byte & 0x7F) << (7 * place);
            if *byte < 0x80 {
                self.rest = &self.rest[place + 1..];
                return Ok(found);
            }
        }
        Err(UnexpectedPayload) // cut off, or longer than it is legal or usual
    }

    fn bytes(&mut self) -> Result<&'a [u8], UnexpectedPayload> {
        let length = usize::try_from(self.number(SHORT)?).map_err(|_| UnexpectedPayload)?;
        let (found, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or(UnexpectedPayload)?;
        self.rest = rest;
        Ok(found)
    }

    /// Reads a field of bytes that may occur once.
    fn once(&mut self, into: &mut Option<&'a [u8]>) -> Result<(), UnexpectedPayload> {
        match into.replace(self.bytes()?) {
            None => Ok(()),
            Some(_) => Err(UnexpectedPayload),
        }
    }
}

/// One event, still in the bytes of its message.
struct Event<'a> {
    id: &'a [u8],
    schema_id: &'a [u8],
    payload: &'a [u8],
    replay_id: &'a [u8],
}

impl<'a> Event<'a> {
    fn read(bytes: &'a [u8]) -> Result<Self, UnexpectedPayload> {
        let (mut event, mut replay_id) = (None, None);
        let mut message = Message { rest: bytes };
        while let Some(tag) = message.tag()? {
            match tag {
                tag::EVENT => message.once(&mut event)?,
                tag::REPLAY_ID => message.once(&mut replay_id)?,
                _ => return Err(UnexpectedPayload),
            }
        }
        let (mut id, mut schema_id, mut payload) = (None, None, None);
        let mut message = Message {
            rest: event.unwrap_or_default(),
        };
        while let Some(tag) = message.tag()? {
            match tag {
                tag::ID => message.once(&mut id)?,
                tag::SCHEMA_ID => message.once(&mut schema_id)?,
                tag::PAYLOAD => message.once(&mut payload)?,
                _ => return Err(UnexpectedPayload), // headers
            }
        }
        Ok(Event {
            id: id.unwrap_or_default(),
            schema_id: schema_id.unwrap_or_default(),
            payload: payload.unwrap_or_default(),
            // Without one, the event is an error.
            replay_id: replay_id
                .filter(|id| !id.is_empty())
                .ok_or(UnexpectedPayload)?,
        })
    }
}

/// A message's events, newest replay id, pending number, and rpc id.
type Fields<'py> = (
    Bound<'py, PyTuple>,
    Option<Bound<'py, PyAny>>,
    i32,
    Bound<'py, PyString>,
);

/// Parses messages. Immutable; may be shared between threads.
#[pyclass(frozen)]
pub struct Responses {
    new_tuple: Py<PyAny>,
    event: Py<PyAny>,
    new_object: Py<PyAny>,
    replay_id: Py<PyAny>,
    set_value: Py<PyAny>,
    no_headers: Py<PyTuple>,
}

#[pymethods]
impl Responses {
    /// `event` is a named tuple of id, schema id, payload, replay id and headers; `set_value` sets the
    /// bytes of a `replay_id` that `new_object` has made.
    #[new]
    fn new(
        py: Python<'_>,
        new_tuple: Py<PyAny>,
        event: Py<PyAny>,
        new_object: Py<PyAny>,
        replay_id: Py<PyAny>,
        set_value: Py<PyAny>,
    ) -> Self {
        Responses {
            new_tuple,
            event,
            new_object,
            replay_id,
            set_value,
            no_headers: PyTuple::empty(py).unbind(),
        }
    }

    /// Return what a message says.
    fn parse<'py>(&self, py: Python<'py>, data: &[u8]) -> PyResult<Fields<'py>> {
        let (mut events, mut latest, mut rpc_id, mut pending) = (Vec::new(), None, None, None);
        let mut message = Message { rest: data };
        // Most events of a response have the same schema, and then share its id.
        let mut schema: Option<(&[u8], Bound<'py, PyString>)> = None;
        while let Some(tag) = message.tag()? {
            match tag {
                tag::EVENTS => {
                    let event = Event::read(message.bytes()?)?;
                    let schema_id = match &schema {
                        Some((bytes, text)) if *bytes == event.schema_id => text.clone(),
                        _ => {
                            let text = PyString::from_bytes(py, event.schema_id)?;
                            schema = Some((event.schema_id, text.clone()));
                            text
                        }
                    };
                    events.push(self.event(py, &event, schema_id)?);
                }
                tag::LATEST => message.once(&mut latest)?,
                tag::RPC_ID => message.once(&mut rpc_id)?,
                tag::PENDING if pending.is_none() => pending = Some(message.number(LONG)?),
                _ => return Err(UnexpectedPayload.into()),
            }
        }
        let latest = latest.filter(|bytes| !bytes.is_empty());
        let pending = i32::try_from(pending.unwrap_or_default()).map_err(|_| UnexpectedPayload)?;
        Ok((
            PyTuple::new(py, events)?,
            latest.map(|bytes| self.replay_id(py, bytes)).transpose()?,
            pending,
            PyString::from_bytes(py, rpc_id.unwrap_or_default())?,
        ))
    }
}

impl Responses {
    fn event<'py>(
        &self,
        py: Python<'py>,
        event: &Event<'_>,
        schema_id: Bound<'py, PyString>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let fields = (
            PyString::from_bytes(py, event.id)?,
            schema_id,
            PyBytes::new(py, event.payload),
            self.replay_id(py, event.replay_id)?,
            self.no_headers.bind(py),
        );
        self.new_tuple.bind(py).call1((self.event.bind(py), fields))
    }

    fn replay_id<'py>(&self, py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        let made = self.new_object.bind(py).call1((self.replay_id.bind(py),))?;
        self.set_value
            .bind(py)
            .call1((&made, PyBytes::new(py, bytes)))?;
        Ok(made)
    }
}
