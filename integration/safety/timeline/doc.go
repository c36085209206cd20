// Package timeline draws a history as a picture: who waited for what and held it when, with which token, what the
// resources took and refused, and which faults were on.
//
// The picture is one SVG file without scripts, for a browser or a page. It has a lane for each fault that is on beside
// others, one for each lock and election with its holders, and one for each actor. Where the pointer rests on something, the
// browser tells more of it. Colours stand for names; red is for faults, losses and refusals.
//
// A picture has at most 2,000 elements or so. A history that needs more is drawn from its beginning as far as that
// goes; [Options] choose another part.
//
// docs/timeline.svg, at the root of the project, is from a run of the safety suite: an election, a part of five seconds.
package timeline
