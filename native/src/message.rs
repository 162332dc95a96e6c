//! An Arrow record batch as one message of Arrow's IPC format, which every Arrow library reads:
//! nothing is shared by pointers. (Arrow documentation, "Serialization and Interprocess
//! Communication"; Message.fbs and Schema.fbs of the format.)

use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Arrow recommends it, for vector instructions; 8 are required.
const ALIGNMENT: usize = 64;

/// Nodes and buffers in the order of the columns, whose memory it borrows.
#[derive(Default)]
pub struct Message<'a> {
    /// Length and number of nulls of every array.
    nodes: Vec<[usize; 2]>,
    /// Place in the body, and size.
    buffers: Vec<[usize; 2]>,
    parts: Vec<Part<'a>>,
    /// Of the body.
    size: usize,
}

enum Part<'a> {
    Bytes(&'a [u8]),
    Ends(&'a [i32]),
}

impl<'a> Message<'a> {
    pub fn node(&mut self, rows: usize, nulls: usize) {
        self.nodes.push([rows, nulls]);
    }

    pub fn bytes(&mut self, bytes: &'a [u8]) {
        self.add(Part::Bytes(bytes), bytes.len());
    }

    pub fn ends(&mut self, ends: &'a [i32]) {
        self.add(Part::Ends(ends), ends.len() * 4);
    }

    fn add(&mut self, part: Part<'a>, size: usize) {
        self.buffers.push([self.size, size]);
        self.parts.push(part);
        self.size += size.next_multiple_of(ALIGNMENT);
    }

    /// Makes the message of so many rows.
    pub fn to_bytes<'py>(&self, py: Python<'py>, rows: usize) -> PyResult<Bound<'py, PyBytes>> {
        let metadata = self.metadata(rows);
        // A mark, the size of what follows up to the body, and the metadata.
        let begin = (metadata.len() + 8).next_multiple_of(ALIGNMENT);
        PyBytes::new_with(py, begin + self.size, |out| {
            out[..4].copy_from_slice(&u32::MAX.to_le_bytes());
            out[4..8].copy_from_slice(&((begin - 8) as u32).to_le_bytes());
            out[8..8 + metadata.len()].copy_from_slice(&metadata);
            for (part, [at, size]) in self.parts.iter().zip(&self.buffers) {
                let place = &mut out[begin + at..][..*size];
                match part {
                    Part::Bytes(bytes) => place.copy_from_slice(bytes),
                    Part::Ends(ends) => {
                        for (place, end) in place.chunks_exact_mut(4).zip(*ends) {
                            place.copy_from_slice(&end.to_le_bytes());
                        }
                    }
                }
            }
            Ok(())
        })
    }

    /// The flatbuffer. All of it but the two lists has a fixed place.
    fn metadata(&self, rows: usize) -> Vec<u8> {
        let nodes = 88; // where the first one is
        let buffers = nodes + self.nodes.len() * 16 + 8;
        let mut out = Flat(vec![0; buffers + self.buffers.len() * 16]);

        out.u32(0, 16); // the table Message
        for (place, value) in [(4, 12), (6, 24), (8, 16), (10, 18), (12, 4), (14, 8)] {
            out.u16(place, value); // its fields: version, type, table, size of the body
        }
        out.u32(16, 12);
        out.u32(20, 56 - 20);
        out.u64(24, self.size);
        out.u16(32, 4); // version 5
        out.0[34] = 3; // a record batch

        for (place, value) in [(40, 10), (42, 24), (44, 8), (46, 4), (48, 16)] {
            out.u16(place, value); // the table RecordBatch: length, nodes, buffers
        }
        out.u32(56, 16);
        out.u32(60, (nodes - 4 - 60) as u32);
        out.u64(64, rows);
        out.u32(72, (buffers - 4 - 72) as u32);

        out.pairs(nodes, &self.nodes);
        out.pairs(buffers, &self.buffers);
        out.0
    }
}

struct Flat(Vec<u8>);

impl Flat {
    fn u16(&mut self, at: usize, value: u16) {
        self.0[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    fn u32(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    fn u64(&mut self, at: usize, value: usize) {
        self.0[at..at + 8].copy_from_slice(&(value as u64).to_le_bytes());
    }

    /// A list, its length before it.
    fn pairs(&mut self, at: usize, pairs: &[[usize; 2]]) {
        self.u32(at - 4, pairs.len() as u32);
        for (number, [one, other]) in pairs.iter().enumerate() {
            self.u64(at + number * 16, *one);
            self.u64(at + number * 16 + 8, *other);
        }
    }
}
