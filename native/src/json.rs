//! Payloads as JSON text, without Python objects in between. The text is the one that
//! `sfpubsub.avro.json` makes with orjson.

use std::collections::HashSet;

use crate::dicts::{finite, for_each, skip};
use crate::input::{Input, UnexpectedPayload};
use crate::schema::{Record, Type};

pub fn value(
    out: &mut String,
    kind: &Type,
    input: &mut Input<'_>,
) -> Result<(), UnexpectedPayload> {
    match kind {
        Type::Null => out.push_str("null"),
        Type::Boolean => out.push_str(if input.boolean()? { "true" } else { "false" }),
        Type::Int => out.push_str(itoa::Buffer::new().format(input.int()?)),
        Type::Long => out.push_str(itoa::Buffer::new().format(input.long()?)),
        Type::Float => number(out, input.float()?.into())?,
        Type::Double => number(out, input.double()?)?,
        Type::Bytes => base64(out, input.span()?),
        Type::String => text(out, input.text()?),
        Type::Fixed(size) => base64(out, input.take(*size)?),
        Type::Enum(symbols) => out.push_str(&input.choice(symbols)?.json),
        Type::Array(items) => array(out, items, input)?,
        Type::Map(values) => map(out, values, input)?,
        Type::Nullable(inside) => match input.long()? {
            0 => out.push_str("null"),
            1 => value(out, inside, input)?,
            _ => return Err(UnexpectedPayload),
        },
        Type::Union(branches) => value(out, input.choice(branches)?, input)?,
        Type::Record(fields) => record(out, fields, input, |_, _| ())?,
        Type::Skipped(_) => return Err(UnexpectedPayload), // fields only
    }
    Ok(())
}

/// Calls `before` with the number of every field and the input that stands before its value.
pub fn record<'a>(
    out: &mut String,
    record: &Record,
    input: &mut Input<'a>,
    mut before: impl FnMut(usize, &Input<'a>),
) -> Result<(), UnexpectedPayload> {
    for (number, field) in record.fields.iter().enumerate() {
        before(number, input);
        if let Type::Skipped(kind) = &field.kind {
            skip(kind, input)?;
            continue;
        }
        if let Type::Nullable(_) = field.kind
            && input.skip_zero()
        {
            out.push_str(&field.json_null);
        } else {
            out.push_str(&field.json);
            value(out, &field.kind, input)?;
        }
    }
    out.push('}');
    Ok(())
}

fn array(out: &mut String, items: &Type, input: &mut Input<'_>) -> Result<(), UnexpectedPayload> {
    out.push('[');
    let begin = out.len();
    for_each(input, |input| {
        if out.len() > begin {
            out.push(',');
        }
        value(out, items, input)
    })?;
    out.push(']');
    Ok(())
}

fn map(out: &mut String, values: &Type, input: &mut Input<'_>) -> Result<(), UnexpectedPayload> {
    out.push('{');
    let mut seen = HashSet::new();
    for_each(input, |input| {
        let key = input.text()?;
        if !seen.is_empty() {
            out.push(',');
        }
        if !seen.insert(key) {
            return Err(UnexpectedPayload); // in a dict the last one wins
        }
        text(out, key);
        out.push(':');
        value(out, values, input)
    })?;
    out.push('}');
    Ok(())
}

fn number(out: &mut String, number: f64) -> Result<(), UnexpectedPayload> {
    let mut buffer = ryu::Buffer::new();
    let text = buffer.format_finite(finite(number)?);
    match text.split_once('e') {
        Some((digits, exponent)) if !exponent.starts_with('-') => {
            out.push_str(digits);
            out.push_str("e+"); // as Python spells it
            out.push_str(exponent);
        }
        _ => out.push_str(text),
    }
    Ok(())
}

/// Adds a string with its quotes.
pub fn text(out: &mut String, text: &str) {
    out.push('"');
    let mut begin = 0;
    for (at, byte) in text.bytes().enumerate() {
        if byte >= b' ' && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.push_str(&text[begin..at]);
        begin = at + 1;
        match byte {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            0x08 => out.push_str("\\b"),
            0x0C => out.push_str("\\f"),
            _ => {
                out.push_str("\\u00");
                out.push(HEX[usize::from(byte >> 4)]);
                out.push(HEX[usize::from(byte & 15)]);
            }
        }
    }
    out.push_str(&text[begin..]);
    out.push('"');
}

const HEX: [char; 16] = [
    '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f',
];

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Adds bytes as base64 with padding, and quotes.
fn base64(out: &mut String, bytes: &[u8]) {
    out.push('"');
    for chunk in bytes.chunks(3) {
        let mut group = [0; 3];
        group[..chunk.len()].copy_from_slice(chunk);
        let bits = u32::from_be_bytes([0, group[0], group[1], group[2]]);
        for place in 0..4 {
            let letter = BASE64[(bits >> (18 - 6 * place)) as usize & 63];
            out.push(if place > chunk.len() {
                '='
            } else {
                letter.into()
            });
        }
    }
    out.push('"');
}
