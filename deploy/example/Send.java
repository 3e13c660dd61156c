// Sends one webhook in each of the four ways: docs/sending.md. Run it with Java 11 or newer.
import java.net.InetSocketAddress;
import java.net.ProxySelector;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;

public class Send {
    static final String HOLDFAST = "http://127.0.0.1:8800";
    static final String TARGET = "http://127.0.0.1:9000/hook";

    static HttpRequest.Builder post(String url, String way) {
        String body = "{\"way\": \"" + way + "\"}";
        return HttpRequest.newBuilder(URI.create(url)).POST(BodyPublishers.ofString(body));
    }

    static void send(HttpClient client, HttpRequest.Builder request) throws Exception {
        HttpResponse<String> answer = client.send(request.build(), BodyHandlers.ofString());
        if (answer.statusCode() != 202) throw new IllegalStateException(answer.body());
        System.out.println(answer.headers().firstValue("Holdfast-Message-Id").orElseThrow());
    }

    public static void main(String[] arguments) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        send(client, post(HOLDFAST + "/" + TARGET, "prefix"));
        send(client, post(HOLDFAST + "/to/example/orders", "route"));
        send(client, post(HOLDFAST, "header").header("Holdfast-Target", TARGET));

        URI gateway = URI.create(HOLDFAST);
        ProxySelector proxy = ProxySelector.of(new InetSocketAddress(gateway.getHost(), gateway.getPort()));
        send(HttpClient.newBuilder().proxy(proxy).build(), post(TARGET, "proxy"));
    }
}
