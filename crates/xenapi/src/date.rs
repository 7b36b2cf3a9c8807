//! Dates and their text on the wire.

use std::fmt;

const DAY_S: i64 = 24 * 60 * 60;

/// Date in whole seconds since 1970-01-01T00:00:00Z. Its text is `YYYYMMDDTHH:MM:SSZ`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Date(pub i64);

impl Date {
    /// Earliest date that the text can represent: the start of the year 0.
    pub const MIN: Self = Self(-62_167_219_200);
    /// Latest date that the text can represent: the end of the year 9999.
    pub const MAX: Self = Self(253_402_300_799);

    /// Parses a date. The day may have dashes. A fraction of a second is dropped. Without `Z` the
    /// time is also UTC, as Python's clients write it.
    pub fn parse(text: &str) -> Option<Self> {
        let (day, time) = text.strip_suffix('Z').unwrap_or(text).split_once('T')?;
        let day = match day.len() {
            8 => (digits(day, 0, 4)?, digits(day, 4, 2)?, digits(day, 6, 2)?),
            10 if marks(day, '-', [4, 7]) => {
                (digits(day, 0, 4)?, digits(day, 5, 2)?, digits(day, 8, 2)?)
            }
            _ => return None,
        };
        let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
        if time.len() != 8 || !marks(time, ':', [2, 5]) || !all_digits(fraction) {
            return None;
        }
        let (hours, minutes, seconds) =
            (digits(time, 0, 2)?, digits(time, 3, 2)?, digits(time, 6, 2)?);
        let days = days_of(day);
        let valid = hours < 24 && minutes < 60 && seconds < 60 && day_of(days) == day;
        valid.then_some(Self(days * DAY_S + (hours * 60 + minutes) * 60 + seconds))
    }
}

impl fmt::Display for Date {
    /// Writes the nearest date that the text can represent.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.clamp(Self::MIN.0, Self::MAX.0);
        let (year, month, day) = day_of(seconds.div_euclid(DAY_S));
        let second = seconds.rem_euclid(DAY_S);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(f, "{year:04}{month:02}{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }
}

fn all_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns the number in the `count` digits at `from`.
fn digits(text: &str, from: usize, count: usize) -> Option<i64> {
    let part = text.get(from..from + count)?;
    if all_digits(part) { part.parse().ok() } else { None }
}

fn marks(text: &str, mark: char, at: [usize; 2]) -> bool {
    at.iter().all(|&at| text.get(at..).is_some_and(|rest| rest.starts_with(mark)))
}

/// Days in 400 years, after which the calendar repeats.
const ERA_DAYS: i64 = 146_097;
/// Days from March 1 of the year 0 to 1970-01-01.
const EPOCH_DAYS: i64 = 719_468;

/// Returns the days since 1970-01-01 of a year, month and day. Years begin in March here, so that
/// the leap day is the last of its year. From March on, each group of five months has 153 days.
fn days_of((year, month, day): (i64, i64, i64)) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let month = (month + 9) % 12;
    let within = year.rem_euclid(400);
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    let day_of_era = within * 365 + within / 4 - within / 100 + day_of_year;
    year.div_euclid(400) * ERA_DAYS + day_of_era - EPOCH_DAYS
}

/// Returns year, month and day of a number of days since 1970-01-01: the inverse of [`days_of`].
fn day_of(days: i64) -> (i64, i64, i64) {
    let days = days + EPOCH_DAYS;
    let day_of_era = days.rem_euclid(ERA_DAYS);
    let leap_days = day_of_era / 1460 - day_of_era / 36_524 + day_of_era / (ERA_DAYS - 1);
    let within = (day_of_era - leap_days) / 365;
    let day_of_year = day_of_era - (365 * within + within / 4 - within / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = (from_march + 2) % 12 + 1;
    let year = within + days.div_euclid(ERA_DAYS) * 400 + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn moments_as_they_are_on_the_wire() {
        let cases = [
            (0, "19700101T00:00:00Z"),
            (951_782_400, "20000229T00:00:00Z"),
            (951_868_800, "20000301T00:00:00Z"),
            (1_467_331_199, "20160630T23:59:59Z"),
            (-1, "19691231T23:59:59Z"),
            (4_107_542_400, "21000301T00:00:00Z"),
            (Date::MIN.0, "00000101T00:00:00Z"),
            (Date::MAX.0, "99991231T23:59:59Z"),
        ];
        for (seconds, text) in cases {
            assert_eq!(Date(seconds).to_string(), text);
            assert_eq!(Date::parse(text), Some(Date(seconds)), "{text}");
        }
        assert_eq!(Date(i64::MAX).to_string(), "99991231T23:59:59Z");
        assert_eq!(Date(i64::MIN).to_string(), "00000101T00:00:00Z");
    }

    #[test]
    fn other_forms_of_the_same_moment() {
        for text in [
            "20160630T23:59:59",
            "2016-06-30T23:59:59Z",
            "2016-06-30T23:59:59.123Z",
            "20160630T23:59:59.9",
        ] {
            assert_eq!(Date::parse(text), Some(Date(1_467_331_199)), "{text}");
        }
    }

    #[test]
    fn what_is_no_moment() {
        for text in [
            "",
            "T",
            "Z",
            "20160631T00:00:00Z",
            "21000229T00:00:00Z",
            "20161301T00:00:00Z",
            "20160001T00:00:00Z",
            "20160600T00:00:00Z",
            "20160630T24:00:00Z",
            "20160630T23:60:00Z",
            "20160630T23:59:60Z",
            "20160630T23:59:59.Z",
            "20160630T23:59:59+01:00",
            "20160630 23:59:59Z",
            "2016-0630T23:59:59Z",
            "2016/06/30T23:59:59Z",
            "+0160630T23:59:59Z",
            "20160630T23-59-59Z",
            "2016063éT23:59:59Z",
        ] {
            assert_eq!(Date::parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_moment_comes_back(seconds in Date::MIN.0..=Date::MAX.0) {
            prop_assert_eq!(Date::parse(&Date(seconds).to_string()), Some(Date(seconds)));
        }

        #[test]
        fn any_text_is_read(text in "\\PC{0,24}", like in "[0-9TZ:.\\-é]{0,24}") {
            let _ = (Date::parse(&text), Date::parse(&like));
        }
    }
}
