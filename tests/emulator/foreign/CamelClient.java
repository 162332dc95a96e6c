import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.camel.builder.RouteBuilder;
import org.apache.camel.component.salesforce.SalesforceComponent;
import org.apache.camel.component.salesforce.SalesforceLoginConfig;
import org.apache.camel.impl.DefaultCamelContext;

// Runs the unmodified camel-salesforce against an emulator: signs in, subscribes from the earliest
// event, publishes one event, and prints the three events that it receives as JSON lines. The
// arguments are the emulator's gRPC target and its HTTP URL.
public final class CamelClient {
  public static void main(String[] arguments) throws Exception {
    String[] grpc = arguments[0].split(":");
    SalesforceLoginConfig login = new SalesforceLoginConfig();
    login.setLoginUrl(arguments[1]);
    login.setClientId("emulator");
    login.setClientSecret("emulator-secret");
    login.setUserName("user@example.com");
    login.setPassword("emulator-password");
    SalesforceComponent salesforce = new SalesforceComponent();
    salesforce.setLoginConfig(login);
    salesforce.setPubSubHost(grpc[0]);
    salesforce.setPubSubPort(Integer.parseInt(grpc[1]));
    CountDownLatch left = new CountDownLatch(3);
    try (DefaultCamelContext context = new DefaultCamelContext()) {
      context.addComponent("salesforce", salesforce);
      context.addRoutes(new RouteBuilder() {
        @Override public void configure() {
          from("salesforce:pubSubSubscribe:/event/Order_Event__e"
              + "?replayPreset=EARLIEST&pubSubBatchSize=10&pubSubDeserializeType=JSON")
              .process(exchange -> {
                System.out.println(exchange.getMessage().getBody(String.class));
                left.countDown();
              });
        }
      });
      context.start();
      String event = "{\"CreatedDate\": 1700000000000, \"CreatedById\": \"005SB0000000001\","
          + " \"Order_Number__c\": \"from Camel\"}";
      context.createProducerTemplate()
          .requestBody("salesforce:pubSubPublish:/event/Order_Event__e", List.of(event));
      if (!left.await(60, TimeUnit.SECONDS)) {
        throw new IllegalStateException("fewer than 3 events arrived within 60 s");
      }
    }
  }
}
