//! The part of the day in which a volume is destaged in the background, as people write it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Minutes of a day.
const DAY: u16 = 24 * 60;

/// `any`, or `HH:MM-HH:MM` in the local time of the daemon's machine; it may go on past midnight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DestageHours {
    /// Whenever the volume is idle.
    #[default]
    Any,
    /// From a minute of the day, 0 to 1439, up to and without another one, 1 to 1440.
    Within(u16, u16),
}

/// The minute of the day that `HH:MM` is, up to 24:00.
fn minute(text: &str) -> Option<u16> {
    let (hour, minute) = text.split_once(':')?;
    let number = |digits: &str, most: u16| {
        let fits = digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse().ok().filter(|&number: &u16| fits && number <= most)
    };
    let minutes = number(hour, 24)? * 60 + number(minute, 59)?;
    (minutes <= DAY).then_some(minutes)
}

impl FromStr for DestageHours {
    type Err = String;

    fn from_str(text: &str) -> Result<DestageHours, String> {
        if text == "any" {
            return Ok(DestageHours::Any);
        }
        let both = text.split_once('-').and_then(|(from, to)| Some((minute(from)?, minute(to)?)));
        let Some((from, until)) = both else {
            return Err(format!("{text:?} is no part of the day: write 01:00-06:00, or any"));
        };
        if from == until {
            return Err(format!("{text:?} is empty: the whole day is 00:00-24:00, or any"));
        }
        Ok(DestageHours::Within(from % DAY, if until == 0 { DAY } else { until }))
    }
}

impl TryFrom<String> for DestageHours {
    type Error = String;

    fn try_from(text: String) -> Result<DestageHours, String> {
        text.parse()
    }
}

impl From<DestageHours> for String {
    fn from(hours: DestageHours) -> String {
        hours.to_string()
    }
}

impl fmt::Display for DestageHours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DestageHours::Within(from, until) = *self else { return f.write_str("any") };
        let (hour, minute) = (from / 60, from % 60);
        write!(f, "{hour:02}:{minute:02}-{:02}:{:02}", until / 60, until % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_are_read_as_they_are_written() {
        for text in ["any", "01:00-06:00", "22:30-06:05", "00:00-24:00", "23:00-24:00"] {
            assert_eq!(text.parse::<DestageHours>().unwrap().to_string(), text);
        }
        let read = |text: &str| text.parse::<DestageHours>();
        assert_eq!(read("22:00-00:00"), Ok(DestageHours::Within(22 * 60, DAY)));
        assert_eq!(read("24:00-01:00"), Ok(DestageHours::Within(0, 60)));
        let wrong = [
            "",
            "-",
            "1:00-6:00",
            "01:00",
            "01:00-",
            "01:60-02:00",
            "25:00-26:00",
            "24:01-02:00",
            "01:00-01:00",
            "00:00-00:00",
            "+1:00-02:00",
            "01:00-06:00 ",
            "01:00-06:00-07:00",
        ];
        for text in wrong {
            assert!(read(text).is_err(), "{text:?}");
        }
    }
}
