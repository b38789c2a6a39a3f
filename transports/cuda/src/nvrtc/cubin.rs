//! What a compiled kernel takes of a multiprocessor, read from the code itself: that needs neither
//! a device nor a driver.
//!
//! An image is an ELF file of 64 bits. Its section `.nv.info` is a list of attributes, of which
//! those of interest name a kernel by its symbol, and give a number.

/// What a kernel takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The kernel.
    pub kernel: String,
    /// Registers of each thread.
    pub registers: u32,
    /// Bytes of local memory of each thread: of arrays that are not in registers, and of what
    /// registers have no room for.
    pub local_bytes: u32,
}

/// Attributes whose value is behind them: a symbol and a number.
const WITH_VALUE: u8 = 4;
const FRAME_BYTES: u8 = 0x11;
const REGISTERS: u8 = 0x2f;
const SYMBOLS: u32 = 2;
const SYMBOL_BYTES: usize = 24;

/// What each kernel of an image takes; nothing for what is no ELF file, or a broken one.
pub fn usage(image: &[u8]) -> Vec<Usage> {
    let kernels = Elf::of(image).and_then(|elf| elf.usage());
    kernels.unwrap_or_default()
}

struct Elf<'a> {
    image: &'a [u8],
    sections: Vec<Section>,
    /// Which section has the names of sections.
    names: usize,
}

struct Section {
    name: usize,
    kind: u32,
    start: usize,
    bytes: usize,
    /// Another section that this one refers to.
    link: usize,
}

impl<'a> Elf<'a> {
    fn of(image: &'a [u8]) -> Option<Self> {
        if !image.starts_with(b"\x7fELF\x02\x01") {
            return None;
        }
        let (at, size) = (long(image, 0x28)?, half(image, 0x3a)?);
        let section = |number: usize| {
            let header = image.get(at.checked_add(number.checked_mul(size)?)?..)?;
            let (name, kind) = (word(header, 0)? as usize, word(header, 4)?);
            let (start, bytes) = (long(header, 0x18)?, long(header, 0x20)?);
            Some(Section { name, kind, start, bytes, link: word(header, 0x28)? as usize })
        };
        let sections: Option<Vec<Section>> = (0..half(image, 0x3c)?).map(section).collect();
        Some(Self { image, sections: sections?, names: half(image, 0x3e)? })
    }

    fn bytes(&self, section: &Section) -> Option<&'a [u8]> {
        self.image.get(section.start..section.start.checked_add(section.bytes)?)
    }

    /// A name in a section of names.
    fn name(&self, names: usize, at: usize) -> Option<&'a str> {
        let text = self.bytes(self.sections.get(names)?)?.get(at..)?;
        std::str::from_utf8(text.split(|byte| *byte == 0).next()?).ok()
    }

    /// The name of a symbol.
    fn symbol(&self, number: u32) -> Option<String> {
        let table = self.sections.iter().find(|section| section.kind == SYMBOLS)?;
        let entry = self.bytes(table)?.get(number as usize * SYMBOL_BYTES..)?;
        Some(self.name(table.link, word(entry, 0)? as usize)?.to_owned())
    }

    fn usage(&self) -> Option<Vec<Usage>> {
        let is_info = |section: &&Section| self.name(self.names, section.name) == Some(".nv.info");
        let mut list = self.bytes(self.sections.iter().find(is_info)?)?;
        let mut all: Vec<Usage> = Vec::new();
        while let [format, what, ..] = *list {
            let value = half(list, 2)?;
            list = &list[4..];
            if format != WITH_VALUE {
                continue;
            }
            let of = list.get(..value)?;
            list = &list[value..];
            if what != REGISTERS && what != FRAME_BYTES {
                continue;
            }
            let (kernel, number) = (self.symbol(word(of, 0)?)?, word(of, 4)?);
            let known = all.iter().position(|usage| usage.kernel == kernel);
            let at = known.unwrap_or_else(|| {
                all.push(Usage { kernel, registers: 0, local_bytes: 0 });
                all.len() - 1
            });
            match what {
                REGISTERS => all[at].registers = number,
                _ => all[at].local_bytes = number,
            }
        }
        Some(all)
    }
}

fn half(bytes: &[u8], at: usize) -> Option<usize> {
    let bytes = bytes.get(at..at + 2)?.try_into().ok()?;
    Some(usize::from(u16::from_le_bytes(bytes)))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<usize> {
    let number = u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?);
    usize::try_from(number).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A section of a file that is being made: its name's place, its kind, what it holds.
    type Part<'a> = (u32, u32, &'a [u8]);

    fn file(parts: &[Part<'_>]) -> Vec<u8> {
        let mut image = vec![0; 64];
        image[..6].copy_from_slice(b"\x7fELF\x02\x01");
        let places: Vec<usize> = parts
            .iter()
            .map(|(.., holds)| {
                image.extend_from_slice(holds);
                image.len() - holds.len()
            })
            .collect();
        let table = image.len() as u64;
        image[0x28..0x30].copy_from_slice(&table.to_le_bytes());
        let counts = [64, parts.len() as u16, 0].map(u16::to_le_bytes).concat();
        image[0x3a..0x40].copy_from_slice(&counts);
        for ((name, kind, holds), place) in parts.iter().zip(places) {
            let mut header = [0; 64];
            header[..8].copy_from_slice(&[name.to_le_bytes(), kind.to_le_bytes()].concat());
            header[0x18..0x20].copy_from_slice(&(place as u64).to_le_bytes());
            header[0x20..0x28].copy_from_slice(&(holds.len() as u64).to_le_bytes());
            image.extend_from_slice(&header);
        }
        image
    }

    /// As compilers write it: an attribute without a value, one of no interest, and the two.
    #[test]
    fn what_kernels_take_is_read_from_the_code() {
        let names = b"\0.nv.info\0sum\0copy\0";
        let symbol = |name: u32| [&name.to_le_bytes()[..], &[0; 20]].concat();
        let symbols = [symbol(0), symbol(10), symbol(14)].concat();
        let of = |what: u8, kernel: u32, number: u32| {
            let head = [WITH_VALUE, what, 8, 0];
            [&head[..], &kernel.to_le_bytes(), &number.to_le_bytes()].concat()
        };
        let list = [
            of(REGISTERS, 2, 32),
            vec![1, 0x50, 0, 0],
            of(FRAME_BYTES, 1, 16),
            of(0x12, 1, 99),
            of(REGISTERS, 1, 104),
        ];
        let list = list.concat();
        let image = file(&[(0, 3, names), (0, SYMBOLS, &symbols), (1, 0x7000_0000, &list)]);
        let usage_of = |kernel: &str, registers, local_bytes| {
            let kernel = kernel.to_owned();
            Usage { kernel, registers, local_bytes }
        };
        assert_eq!(usage(&image), [usage_of("copy", 32, 0), usage_of("sum", 104, 16)]);
        // Whatever is cut off is nothing that can be read, and no more than that.
        for end in 0..image.len() {
            assert!(usage(&image[..end]).len() <= 2, "{end}");
        }
        assert_eq!(usage(b"an image of the fake's"), []);
    }
}
