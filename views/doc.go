// Package views is what people see: templ components and the view models they render. A view model is
// shaped like the screen it fills; handlers fill it from what services answer. Nothing here does I/O,
// asks a clock or imports the domain.
//
// There is one pair of files per page (home.go with the models, home.templ with the markup), plus
// layout.templ (the frame), components.templ (the small parts) and transcript.go (how rows of a
// conversation become items on the page). Text that nobody vouches for passes through package markup.
//
// # Live pages
//
// A page is complete when it arrives. When JavaScript runs, one stable element of it, LiveStream, opens a
// stream and swaps fragments of the same components into the page. htmx's SSE extension swaps only messages
// without an event name, so the HTML stream has a framing of its own, different from the JSON stream:
//
//	id: 41
//	data: <hx-partial hx-target="#transcript" hx-swap="beforeend"><li id="e-41">…</li></hx-partial>
//	data: <hx-partial hx-target="#e-40" hx-swap="outerMorph"><li id="e-40">…</li></hx-partial>
//
//	event: beat
//	data:
//
//	event: end
//	data:
//
// A message holds any number of Fragments, each an <hx-partial>: the id of the element it changes, how, and
// the HTML. The stream element itself swaps nothing ("none"), so a message can only change what it names.
// The id is the sequence number of the last row the message covers; the extension sends it back as
// Last-Event-ID when it reconnects, and the page's own cursor stands in the stream's URL (?after=). Every
// (re)connection begins with the fragments of state (status, composer, facts), so that a page that missed
// the end of a turn is right again without a reload. A beat comes at least every 15 s; after 40 s without
// anything the script takes the connection for dead and opens it again. "end" closes it for good.
//
// Elements that are swapped keep what a person did to them: the attribute open is left alone by morphing
// (see HTMXConfig), the composer is never swapped, only what surrounds it.
package views
