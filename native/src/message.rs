//! An Arrow record batch as one message of Arrow's IPC format, which every Arrow library reads:
//! nothing is shared by pointers. (Arrow documentation, "Serialization and Interprocess
//! Communication"; Message.fbs and Schema.fbs of the format.)

/// Arrow recommends it, for vector instructions; 8 are required.
const ALIGNMENT: usize = 64;

/// Nodes and buffers in the order of the columns.
#[derive(Default)]
pub struct Message {
    /// Length and number of nulls of every array.
    nodes: Vec<[usize; 2]>,
    /// Place in the body, and size.
    buffers: Vec<[usize; 2]>,
    body: Vec<u8>,
}

impl Message {
    pub fn node(&mut self, rows: usize, nulls: usize) {
        self.nodes.push([rows, nulls]);
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        self.buffers.push([self.body.len(), bytes.len()]);
        self.body.extend_from_slice(bytes);
        self.align();
    }

    pub fn ends(&mut self, ends: &[i32]) {
        let begin = self.body.len();
        self.buffers.push([begin, ends.len() * 4]);
        self.body.resize(begin + ends.len() * 4, 0);
        for (place, end) in self.body[begin..].chunks_exact_mut(4).zip(ends) {
            place.copy_from_slice(&end.to_le_bytes());
        }
        self.align();
    }

    fn align(&mut self) {
        self.body
            .resize(self.body.len().next_multiple_of(ALIGNMENT), 0);
    }

    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// What stands before the body.
    pub fn head(&self, rows: usize) -> Vec<u8> {
        let metadata = self.metadata(rows);
        // With the mark and the size before it.
        let size = (metadata.len() + 8).next_multiple_of(ALIGNMENT);
        let mut head = Vec::with_capacity(size);
        head.extend(u32::MAX.to_le_bytes());
        head.extend(((size - 8) as u32).to_le_bytes());
        head.extend(metadata);
        head.resize(size, 0);
        head
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
        out.u64(24, self.body.len());
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
