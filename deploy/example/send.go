// Sends one webhook in each of the four ways: docs/sending.md. Run it with go run.
package main

import (
	"fmt"
	"log"
	"net/http"
	"net/url"
	"strings"
)

const (
	holdfast = "http://127.0.0.1:8800"
	target   = "http://127.0.0.1:9000/hook"
)

func post(client *http.Client, address, body string, headers http.Header) {
	request, err := http.NewRequest("POST", address, strings.NewReader(body))
	if err != nil {
		log.Fatal(err)
	}
	request.Header = headers
	answer, err := client.Do(request)
	if err != nil {
		log.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusAccepted {
		log.Fatal("refused: ", answer.Status)
	}
	fmt.Println(answer.Header.Get("Holdfast-Message-Id"))
}

func main() {
	post(http.DefaultClient, holdfast+"/"+target, `{"way": "prefix"}`, http.Header{})
	post(http.DefaultClient, holdfast+"/to/example/orders", `{"way": "route"}`, http.Header{})
	post(http.DefaultClient, holdfast, `{"way": "header"}`, http.Header{"Holdfast-Target": {target}})

	gateway, _ := url.Parse(holdfast)
	proxied := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(gateway)}}
	post(proxied, target, `{"way": "proxy"}`, http.Header{})
}
