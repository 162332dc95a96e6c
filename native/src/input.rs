//! Reads Avro's building blocks from a payload.
//!
//! Every count and length is checked against the bytes that are left before anything is allocated
//! for it. What does not fit is `UnexpectedPayload`: the careful reading in Python then says what is wrong.

/// The payload has something that is left to the careful reading.
#[derive(Debug)]
pub struct UnexpectedPayload;

#[derive(Clone)]
pub struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Input<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Input { bytes, at: 0 }
    }

    /// A payload is exactly one datum.
    pub fn end(&self) -> Result<(), UnexpectedPayload> {
        if self.at == self.bytes.len() {
            Ok(())
        } else {
            Err(UnexpectedPayload)
        }
    }

    #[inline]
    pub fn byte(&mut self) -> Result<u8, UnexpectedPayload> {
        let byte = *self.bytes.get(self.at).ok_or(UnexpectedPayload)?;
        self.at += 1;
        Ok(byte)
    }

    /// A number of ten bytes and 64 bits at most, still zigzag. Padding is legal.
    #[inline]
    fn number(&mut self) -> Result<u64, UnexpectedPayload> {
        let first = self.byte()?;
        if first < 0x80 {
            return Ok(first.into());
        }
        let mut found = u64::from(first & 0x7F);
        for shift in (7..63).step_by(7) {
            let byte = self.byte()?;
            found |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Ok(found);
            }
        }
        match self.byte()? {
            last @ (0 | 1) => Ok(found | u64::from(last) << 63),
            _ => Err(UnexpectedPayload),
        }
    }

    #[inline]
    pub fn long(&mut self) -> Result<i64, UnexpectedPayload> {
        let raw = self.number()?;
        Ok((raw >> 1).cast_signed() ^ -((raw & 1).cast_signed()))
    }

    #[inline]
    pub fn int(&mut self) -> Result<i32, UnexpectedPayload> {
        let raw = u32::try_from(self.number()?).map_err(|_| UnexpectedPayload)?;
        Ok((raw >> 1).cast_signed() ^ -((raw & 1).cast_signed()))
    }

    #[inline]
    pub fn boolean(&mut self) -> Result<bool, UnexpectedPayload> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(UnexpectedPayload),
        }
    }

    #[inline]
    pub fn float(&mut self) -> Result<f32, UnexpectedPayload> {
        let (bytes, _) = self.rest().split_first_chunk().ok_or(UnexpectedPayload)?;
        self.at += 4;
        Ok(f32::from_le_bytes(*bytes))
    }

    #[inline]
    pub fn double(&mut self) -> Result<f64, UnexpectedPayload> {
        let (bytes, _) = self.rest().split_first_chunk().ok_or(UnexpectedPayload)?;
        self.at += 8;
        Ok(f64::from_le_bytes(*bytes))
    }

    #[inline]
    pub fn take(&mut self, size: usize) -> Result<&'a [u8], UnexpectedPayload> {
        let taken = self.rest().get(..size).ok_or(UnexpectedPayload)?;
        self.at += size;
        Ok(taken)
    }

    /// The bytes of a `bytes` or a `string`.
    #[inline]
    pub fn span(&mut self) -> Result<&'a [u8], UnexpectedPayload> {
        let size = usize::try_from(self.long()?).map_err(|_| UnexpectedPayload)?;
        self.take(size)
    }

    #[inline]
    pub fn text(&mut self) -> Result<&'a str, UnexpectedPayload> {
        str::from_utf8(self.span()?).map_err(|_| UnexpectedPayload)
    }

    /// Which one of `choices`: a symbol of an enum, a branch of a union.
    #[inline]
    pub fn choice<'c, T>(&mut self, choices: &'c [T]) -> Result<&'c T, UnexpectedPayload> {
        let index = usize::try_from(self.long()?).map_err(|_| UnexpectedPayload)?;
        choices.get(index).ok_or(UnexpectedPayload)
    }

    /// Whether the next byte is 0, which is the first branch of a union; steps over it then.
    #[inline]
    pub fn skip_zero(&mut self) -> bool {
        let is_zero = self.bytes.get(self.at) == Some(&0);
        self.at += usize::from(is_zero);
        is_zero
    }

    /// The number of items in the next block of an array or map; 0 behind the last one.
    ///
    /// Every item takes a byte at least (see `Type`), so more than there are bytes is odd.
    pub fn block(&mut self) -> Result<usize, UnexpectedPayload> {
        let count = self.long()?;
        if count < 0 {
            self.long()?; // the block's size, for readers that skip it
        }
        let count = usize::try_from(count.unsigned_abs()).map_err(|_| UnexpectedPayload)?;
        if count > self.rest().len() {
            Err(UnexpectedPayload)
        } else {
            Ok(count)
        }
    }

    #[inline]
    fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }
}
