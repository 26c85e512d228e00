//! Writing a safetensors file tensor by tensor, so that memory holds one of them.

use std::collections::VecDeque;
use std::io::{self, Write};

use serde_json::{Map, Value, json};

/// A file of f32 tensors whose names and shapes are known beforehand.
#[derive(Debug)]
pub struct FileWriter<W> {
    out: W,
    /// How many numbers each of the tensors still to come has.
    left: VecDeque<usize>,
}

impl<W: Write> FileWriter<W> {
    /// Writes the header. Tensors follow in the order given. `about` are texts about the file.
    ///
    /// # Errors
    /// When `out` cannot be written.
    ///
    /// # Panics
    /// When a name stands twice, or shapes hold more bytes than can be counted; a checked model has neither.
    pub fn start<'a>(
        mut out: W,
        about: &[(&str, &str)],
        tensors: impl IntoIterator<Item = (&'a str, &'a [usize])>,
    ) -> io::Result<Self> {
        let mut header = Map::new();
        if !about.is_empty() {
            let about: Map<String, Value> = about.iter().map(|&(key, text)| (key.into(), text.into())).collect();
            header.insert("__metadata__".into(), about.into());
        }
        let (mut left, mut at) = (VecDeque::new(), 0_usize);
        for (name, shape) in tensors {
            let count = shape.iter().try_fold(1_usize, |product, &size| product.checked_mul(size));
            let (count, end) = count.and_then(|n| Some((n, n.checked_mul(4)?.checked_add(at)?))).expect("countable");
            let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [at, end]});
            assert!(header.insert(name.into(), entry).is_none(), "{name} twice");
            left.push_back(count);
            at = end;
        }
        let mut text = Value::Object(header).to_string().into_bytes();
        // The numbers begin at a multiple of 8 bytes.
        text.resize(text.len().next_multiple_of(8), b' ');
        out.write_all(&(text.len() as u64).to_le_bytes())?;
        out.write_all(&text)?;
        Ok(Self { out, left })
    }

    /// Writes the next tensor.
    ///
    /// # Errors
    /// When the file cannot be written.
    ///
    /// # Panics
    /// When no tensor is left, or `values` are not as many as its shape holds.
    pub fn put(&mut self, values: &[f32]) -> io::Result<()> {
        assert_eq!(self.left.pop_front(), Some(values.len()), "the next tensor's numbers");
        // Through a buffer of its own: the bytes of a large tensor at once would double its memory.
        for part in values.chunks(1 << 14) {
            let bytes: Vec<u8> = part.iter().flat_map(|value| value.to_le_bytes()).collect();
            self.out.write_all(&bytes)?;
        }
        Ok(())
    }

    /// What was written to, with every tensor in it.
    ///
    /// # Errors
    /// When the last bytes cannot be written.
    ///
    /// # Panics
    /// When a tensor is missing.
    pub fn finish(mut self) -> io::Result<W> {
        assert!(self.left.is_empty(), "{} tensors are missing", self.left.len());
        self.out.flush()?;
        Ok(self.out)
    }
}
