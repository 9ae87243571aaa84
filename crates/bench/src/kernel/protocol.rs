//! What the guest tells the host: lines of JSON on its console, among whatever else is printed there.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// Begins each line that is meant for the host.
const MARK: &str = "@@";

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Line {
    /// Something to be told with the results.
    Fact(String),
    /// What one side came to in one round of a row.
    Figures { row: String, side: usize, values: BTreeMap<String, f64> },
    /// A side that cannot be measured, in a row or (if the row is empty) at all.
    Missing { row: String, side: usize, reason: String },
    /// There will be no more.
    End,
}

impl Line {
    /// The line as the guest prints it.
    pub(super) fn print(&self) {
        let value = match self {
            Self::Fact(text) => json!({ "fact": text }),
            Self::Figures { row, side, values } => {
                json!({ "row": row, "side": side, "values": values })
            }
            Self::Missing { row, side, reason } => {
                json!({ "row": row, "side": side, "missing": reason })
            }
            Self::End => json!({ "end": true }),
        };
        println!("{MARK}{value}");
    }

    /// Reads a line of the console; `None` if it is not for the host, or cut.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text.split_once(MARK)?.1.trim_end()).ok()?;
        let string = |key: &str| value[key].as_str().map(str::to_owned);
        if value["end"].as_bool() == Some(true) {
            return Some(Self::End);
        }
        if let Some(fact) = string("fact") {
            return Some(Self::Fact(fact));
        }
        let (row, side) = (string("row")?, usize::try_from(value["side"].as_u64()?).ok()?);
        if let Some(reason) = string("missing") {
            return Some(Self::Missing { row, side, reason });
        }
        let values = value["values"].as_object()?.iter();
        let values = values.map(|(key, value)| Some((key.clone(), value.as_f64()?)));
        Some(Self::Figures { row, side, values: values.collect::<Option<_>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A console as it comes: messages of the kernel between the lines, and carriage returns.
    const CONSOLE: &str = "\
Checking PROT_EXEC mmap in /dev/shm...OK\r
@@{\"fact\":\"guest: Linux 6.1.176\"}\r
[    1.2] null: @@{\"row\":\"read\",\"side\":1,\"values\":{\"rate\":31359.5,\"ssd\":0}}\r
@@{\"row\":\"\",\"side\":2,\"missing\":\"starting: no module\"}\r
@@{\"row\":\"read\",\"side\":1,\"values\":{\"rate\":3135\r
@@{\"row\":\"read\",\"side\":1,\"values\":{\"rate\":null}}\r
@@{\"end\":true}\r
reboot: Power down\r
";

    #[test]
    fn what_is_not_for_the_host_or_cut_is_no_line() {
        let lines: Vec<Line> = CONSOLE.lines().filter_map(Line::parse).collect();
        let values = BTreeMap::from([("rate".to_owned(), 31359.5), ("ssd".to_owned(), 0.0)]);
        let (row, reason) = (String::new(), "starting: no module".to_owned());
        let expected = [
            Line::Fact("guest: Linux 6.1.176".to_owned()),
            Line::Figures { row: "read".to_owned(), side: 1, values },
            Line::Missing { row, side: 2, reason },
            Line::End,
        ];
        assert_eq!(lines, expected);
    }
}
