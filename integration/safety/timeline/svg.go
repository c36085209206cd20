package timeline

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
)

// palette are the names' colours. White text can be read on each, and each can be told from both backgrounds.
var palette = [...]string{"#3a6fd8", "#b8621b", "#2f8a57", "#8751c4", "#14849a", "#b8407f", "#7a7619", "#5c6f8a"}

const red = "#d8343f"

// style has the colours of what is no name's, for light and for dark backgrounds.
const style = `
text{font:11px -apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;fill:#1f2733}
.h{font-size:19px;font-weight:600}.s,.t{fill:#5b6675}.c{font-size:10px;font-weight:600;letter-spacing:.08em;fill:#7b8694}
.l{font-size:11.5px}.b{font-size:10px;font-weight:600;fill:#fff}.e{text-anchor:end}.m{text-anchor:middle}
.bg{fill:#fff}.row{fill:#f5f7fa}.grid{stroke:#dfe4ea}.halo{stroke:#fff}
.f{fill:#d8343f;fill-opacity:.055}.g{fill:#d8343f;fill-opacity:.16}.tag{fill:#fbe3e4;stroke:#e9a5aa}.ft{fill:#8d1720}
@media (prefers-color-scheme:dark){
text{fill:#e3e9f1}.s,.t{fill:#9aa6b5}.c{fill:#8390a0}.b{fill:#fff}
.bg{fill:#0f141b}.row{fill:#161d27}.grid{stroke:#2a3440}.halo{stroke:#0f141b}
.f{fill-opacity:.09}.g{fill-opacity:.24}.tag{fill:#43181d;stroke:#7d2b33}.ft{fill:#ffb9be}
}
`

// canvas writes SVG and counts its elements.
type canvas struct {
	body     strings.Builder
	elements int
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder does not fail
	return b.String()
}

// add writes one element, with what the browser shows of it if that is not empty.
func (c *canvas) add(tell, element, format string, args ...any) {
	c.elements++
	if tell == "" {
		c.printf("<%s %s/>\n", element, fmt.Sprintf(format, args...))
		return
	}
	c.elements++
	c.printf("<%s %s><title>%s</title></%s>\n", element, fmt.Sprintf(format, args...), escape(tell), element)
}

func (c *canvas) text(x, y float64, class, s string) {
	c.elements++
	c.printf("<text class=%q x=\"%.1f\" y=\"%.1f\">%s</text>\n", class, x, y, escape(s))
}

func (c *canvas) rect(tell string, x, y, w, h float64, more string) {
	c.add(tell, "rect", `x="%.1f" y="%.1f" width="%.1f" height="%.1f" %s`, x, y, w, h, more)
}

func (c *canvas) printf(format string, args ...any) { _, _ = fmt.Fprintf(&c.body, format, args...) }

// page writes the whole picture.
func (c *canvas) page(w io.Writer, title string, high float64) {
	_, _ = fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" width="%.0f" height="%.0f" role="img" aria-label="%s">
<style>%s</style>
%s</svg>
`, width, high, width, high, escape(title), style, c.body.String())
}
