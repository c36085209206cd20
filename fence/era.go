package fence

import "fmt"

// DefaultMaxEra is the highest era that a fence accepts by default. The era of the sessions can be raised up to this
// value without a change of the fences' options.
const DefaultMaxEra = 15

// CheckEra returns an error that matches [ErrInvalidToken] if the era of t is above most, or above [DefaultMaxEra] if
// most is 0. [Guard] and every store call it before anything else, with their option MaxEra.
//
// A mark only grows. Without this bound a single token that was never granted, for example a clock's value or one from
// a damaged file, could become the mark of a resource and lock out every holder.
func (t Token) CheckEra(most uint16) error {
	if most == 0 {
		most = DefaultMaxEra
	}
	if t.Era() <= most {
		return nil
	}
	return fmt.Errorf("%w %d: its era is %d, want 0 to %d: if this era is in use, raise MaxEra in the options of the fence",
		ErrInvalidToken, int64(t), t.Era(), most)
}

// CheckMaxEra returns an error that names the field if most is not a legal era.
func CheckMaxEra(field string, most uint16) error {
	if most > maxEra {
		return fmt.Errorf("%s is %d, want 1 to %d, or 0 for %d", field, most, maxEra, DefaultMaxEra)
	}
	return nil
}
