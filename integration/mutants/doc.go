// Package mutants keeps faults that must not pass the tests unseen: each mutant is one change that makes a file of this
// repository wrong, and the name of the test that has to notice.
//
// The package's test writes all mutants into a copy of the code (the -overlay flag of go build; no file of the tree is
// touched, and no hook is built into the code): each is a copy of the function that it changes, which the function calls
// if the environment selects that mutant. So one test binary of a package serves all mutants that its tests have to
// notice. For each of them it runs the named test alone, and requires that it fails in the named assertion. A build that
// fails, a panic, a time-out or another assertion is no kill. The same test has to pass with no mutant selected, so that
// it is the mutant which it notices.
//
// # To add a mutant
//
// Put an entry into the table of its package, in a file that is named after it. The old text must be in the file exactly
// once, inside of one function, and the file must compile with the new one in its place: a variable that becomes unused is
// not allowed. Choose the fault somebody could really make, and the fastest test that sees it, best one in a synctest
// bubble. If no test does, write that first.
//
// # When the code changes
//
// A mutant whose old text is gone fails: write it anew for the code as it is now, so that it stands for the same fault. Drop it
// only if that fault cannot be made any more. A mutant whose test or assertion is gone fails too: name the one that notices
// the fault now. A mutant that lives means that a test has lost its teeth.
package mutants
