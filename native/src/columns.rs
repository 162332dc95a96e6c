//! Payloads as Arrow columns.
//!
//! A column is told the row that a value is for, and fills the rows before it with nulls: a field
//! that is null costs the look at one byte, and all its nulls are written together.

use crate::dicts::for_each;
use crate::input::{Input, UnexpectedPayload};
use crate::message::Message;
use crate::schema::Type;

/// A column with everything below it, in the order of Arrow's columnar format.
pub struct Column {
    valid: Bits,
    values: Values,
}

enum Values {
    Boolean(Bits),
    /// Numbers and `fixed`: the bytes of each, and all of them.
    Fixed(usize, Vec<u8>),
    /// Strings, bytes, and an enum's symbols: where each ends, behind a 0, and all of them.
    Spans(Vec<i32>, Vec<u8>),
    /// Strings that are made here.
    Texts(Vec<i32>, String),
    List(Vec<i32>, Box<Column>),
    /// Of keys and values.
    Map(Vec<i32>, Box<[Column; 2]>),
    Struct(Vec<Column>),
    /// A union of several types: a struct with a column for each, of which at most one has a value.
    Union(Vec<Option<Column>>),
}

impl Column {
    /// Makes room for some rows beforehand.
    pub fn new(kind: &Type, rows: usize) -> Column {
        let values = match kind {
            Type::Nullable(inside) => return Column::new(inside, rows),
            // Only ever a branch, for which `Union` has no column.
            Type::Null | Type::Boolean => Values::Boolean(Bits::default()),
            Type::Int | Type::Float => Values::Fixed(4, Vec::with_capacity(rows * 4)),
            Type::Long | Type::Double => Values::Fixed(8, Vec::with_capacity(rows * 8)),
            Type::Bytes | Type::String | Type::Enum(_) => Values::Spans(ends_for(rows), vec![]),
            Type::Fixed(size) => Values::Fixed(*size, vec![]),
            Type::Array(items) => Values::List(ends_for(rows), Box::new(Column::new(items, rows))),
            Type::Map(values) => {
                let both = [Column::new(&Type::String, 0), Column::new(values, 0)];
                Values::Map(ends_for(rows), Box::new(both))
            }
            Type::Record(record) => Values::Struct(
                record
                    .fields
                    .iter()
                    .map(|field| Column::new(&field.kind, rows))
                    .collect(),
            ),
            Type::Union(branches) => return Column::of_union(branches, rows),
            Type::Skipped(inside) => return Column::new(inside, rows), // never read
        };
        Column {
            valid: Bits::default(),
            values,
        }
    }

    /// Of strings that are made here.
    pub fn of_texts(rows: usize) -> Column {
        Column {
            valid: Bits::default(),
            values: Values::Texts(ends_for(rows), String::new()),
        }
    }

    fn of_union(branches: &[Type], rows: usize) -> Column {
        let member = |branch: &Type| match branch {
            Type::Null => None,
            _ => Some(Column::new(branch, rows)),
        };
        Column {
            valid: Bits::default(),
            values: Values::Union(branches.iter().map(member).collect()),
        }
    }

    /// Reads the value of a row, which is behind all rows that were read before.
    pub fn read(
        &mut self,
        kind: &Type,
        input: &mut Input<'_>,
        row: usize,
    ) -> Result<(), UnexpectedPayload> {
        match kind {
            Type::Nullable(inside) => {
                return match input.long()? {
                    0 => Ok(()),
                    1 => self.read(inside, input, row),
                    _ => Err(UnexpectedPayload),
                };
            }
            Type::Union(branches) => return self.read_branch(branches, input, row),
            _ => self.valid.set(row),
        }
        match (&mut self.values, kind) {
            (Values::Boolean(bits), _) => {
                if input.boolean()? {
                    bits.set(row);
                }
            }
            (Values::Fixed(_, data), Type::Int) => put(data, row, &input.int()?.to_le_bytes()),
            (Values::Fixed(_, data), Type::Long) => put(data, row, &input.long()?.to_le_bytes()),
            // As they came, and Arrow's floats are of the same bytes.
            (Values::Fixed(size, data), _) => put(data, row, input.take(*size)?),
            (Values::Spans(ends, data), Type::Bytes) => span(ends, data, row, input.span()?)?,
            (Values::Spans(ends, data), Type::Enum(symbols)) => {
                span(ends, data, row, input.choice(symbols)?.text.as_bytes())?;
            }
            (Values::Spans(ends, data), _) => span(ends, data, row, input.text()?.as_bytes())?,
            (Values::List(ends, column), Type::Array(items)) => {
                let mut inner = last(ends);
                for_each(input, |input| {
                    column.read(items, input, inner)?;
                    inner += 1;
                    Ok(())
                })?;
                end(ends, row, inner)?;
            }
            (Values::Map(ends, columns), Type::Map(values)) => {
                let mut inner = last(ends);
                for_each(input, |input| {
                    columns[0].read(&Type::String, input, inner)?;
                    columns[1].read(values, input, inner)?;
                    inner += 1;
                    Ok(())
                })?;
                end(ends, row, inner)?;
            }
            (Values::Struct(columns), Type::Record(record)) => {
                for (column, field) in columns.iter_mut().zip(&record.fields) {
                    if let Type::Nullable(_) = field.kind
                        && input.skip_zero()
                    {
                        continue;
                    }
                    column.read(&field.kind, input, row)?;
                }
            }
            _ => return Err(UnexpectedPayload), // a column is made of the type that it reads
        }
        Ok(())
    }

    /// Adds a text that `write` adds to a string.
    pub fn read_text(
        &mut self,
        row: usize,
        write: impl FnOnce(&mut String) -> Result<(), UnexpectedPayload>,
    ) -> Result<(), UnexpectedPayload> {
        let Values::Texts(ends, text) = &mut self.values else {
            return Err(UnexpectedPayload);
        };
        self.valid.set(row);
        write(text)?;
        end(ends, row, text.len())
    }

    fn read_branch(
        &mut self,
        branches: &[Type],
        input: &mut Input<'_>,
        row: usize,
    ) -> Result<(), UnexpectedPayload> {
        let number = usize::try_from(input.long()?).map_err(|_| UnexpectedPayload)?;
        let branch = branches.get(number).ok_or(UnexpectedPayload)?;
        if let Values::Union(columns) = &mut self.values
            && let Some(column) = &mut columns[number]
        {
            self.valid.set(row);
            column.read(branch, input, row)?;
        }
        Ok(())
    }

    /// Makes it `rows` long: takes off what a value that was odd has left, and fills up with nulls.
    pub fn fit(&mut self, rows: usize) {
        self.valid.fit(rows);
        match &mut self.values {
            Values::Boolean(bits) => bits.fit(rows),
            Values::Spans(ends, data) => {
                fit_ends(ends, rows);
                data.truncate(last(ends));
            }
            Values::Texts(ends, text) => {
                fit_ends(ends, rows);
                text.truncate(last(ends));
            }
            Values::Fixed(size, data) => data.resize(rows * *size, 0),
            Values::List(ends, column) => {
                fit_ends(ends, rows);
                column.fit(last(ends));
            }
            Values::Map(ends, columns) => {
                fit_ends(ends, rows);
                columns.iter_mut().for_each(|column| column.fit(last(ends)));
            }
            Values::Struct(columns) => columns.iter_mut().for_each(|column| column.fit(rows)),
            Values::Union(columns) => columns
                .iter_mut()
                .flatten()
                .for_each(|column| column.fit(rows)),
        }
    }

    /// Adds the column and all below it to a message. It was made to `fit` before.
    pub fn write<'a>(&'a self, out: &mut Message<'a>, rows: usize) {
        let nulls = rows - self.valid.count();
        out.node(rows, nulls);
        out.bytes(if nulls == 0 { &[] } else { &self.valid.bytes });
        match &self.values {
            Values::Boolean(bits) => out.bytes(&bits.bytes),
            Values::Spans(ends, data) => {
                out.ends(ends);
                out.bytes(data);
            }
            Values::Texts(ends, text) => {
                out.ends(ends);
                out.bytes(text.as_bytes());
            }
            Values::Fixed(_, data) => out.bytes(data),
            Values::List(ends, column) => {
                out.ends(ends);
                column.write(out, last(ends));
            }
            Values::Map(ends, columns) => {
                out.ends(ends);
                out.node(last(ends), 0); // the struct of both
                out.bytes(&[]);
                columns
                    .iter()
                    .for_each(|column| column.write(out, last(ends)));
            }
            Values::Struct(columns) => columns.iter().for_each(|column| column.write(out, rows)),
            Values::Union(columns) => {
                columns
                    .iter()
                    .flatten()
                    .for_each(|column| column.write(out, rows));
            }
        }
    }
}

fn put(data: &mut Vec<u8>, row: usize, value: &[u8]) {
    data.resize(row * value.len(), 0);
    data.extend_from_slice(value);
}

fn span(
    ends: &mut Vec<i32>,
    data: &mut Vec<u8>,
    row: usize,
    value: &[u8],
) -> Result<(), UnexpectedPayload> {
    data.extend_from_slice(value);
    end(ends, row, data.len())
}

/// Says where the value of a row ends.
fn end(ends: &mut Vec<i32>, row: usize, at: usize) -> Result<(), UnexpectedPayload> {
    let at = i32::try_from(at).map_err(|_| UnexpectedPayload)?;
    ends.resize(row + 1, last(ends) as i32);
    ends.push(at);
    Ok(())
}

fn ends_for(rows: usize) -> Vec<i32> {
    let mut ends = Vec::with_capacity(rows + 1);
    ends.push(0);
    ends
}

fn last(ends: &[i32]) -> usize {
    ends.last().map_or(0, |end| *end as usize)
}

fn fit_ends(ends: &mut Vec<i32>, rows: usize) {
    if ends.len() <= rows {
        ends.resize(rows + 1, last(ends) as i32);
    }
    ends.truncate(rows + 1);
}

#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
}

impl Bits {
    fn set(&mut self, row: usize) {
        if self.bytes.len() <= row / 8 {
            self.bytes.resize(row / 8 + 1, 0);
        }
        self.bytes[row / 8] |= 1 << (row % 8);
    }

    fn fit(&mut self, rows: usize) {
        self.bytes.resize(rows.div_ceil(8), 0);
        if let Some(last) = self.bytes.last_mut()
            && !rows.is_multiple_of(8)
        {
            *last &= (1 << (rows % 8)) - 1;
        }
    }

    fn count(&self) -> usize {
        self.bytes
            .iter()
            .map(|byte| byte.count_ones() as usize)
            .sum()
    }
}
