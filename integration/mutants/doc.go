// Package mutants keeps faults that the tests must notice. A mutant is one change that makes a file of this repository
// wrong, and the test that must fail then, its killer.
//
// The package's test compiles all mutants into copies of the files, by the -overlay flag of go build; the tree is not
// touched. In such a copy a function with a mutant begins with a changed copy of its body, which runs only if the
// environment selects that mutant. So one test binary of a package serves all mutants that its tests must kill.
// For each mutant the test runs the killer alone, which must fail at the named assertion. A failed build, a panic, a
// timeout or another assertion is no kill. On the unchanged code the killer runs among the tests of its package.
//
// # To add a mutant
//
// Add it to the table of its package, in the file that is named after that, below the file that it changes. The edited
// place must be there exactly once, inside of one function, and the file must compile with the edit: no variable may
// become unused. Choose a fault that somebody could really make, and the fastest test that notices it, preferably in a
// synctest bubble. If no test notices it, write one first.
//
// # When the code changes
//
// If a mutant's place is gone, the test fails: write the same fault for the present code. Drop the mutant only if
// the fault is no longer possible. If a killer or its assertion is gone, the test fails too: name the assertion that
// notices the fault now. If a mutant lives, its killer no longer notices the fault: mend that test.
package mutants
